// The threads that share the work of a large kernel. MLX computes on one thread
// per stream; a long-running kernel uses all cores.
//
// The number of threads is that of the cores that the process may use, unless
// the environment variable MLXGEN_NUM_THREADS or OMP_NUM_THREADS sets another.
// Between tasks the threads sleep, a short while after the last one: waking
// takes as long as a small task, and a decode step is a sequence of those. One
// task uses them at a time; meanwhile a second stream computes on its own
// thread, so that there are never more busy threads than cores and streams.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include <unistd.h>

#if defined(__linux__)
#include <sched.h>
#endif

namespace mlxgen::cpu {

/** The number of threads for a large task, including the stream's own. */
inline int thread_count() {
  for (const char* variable : {"MLXGEN_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const char* text = std::getenv(variable)) {
      char* end = nullptr;
      long count = std::strtol(text, &end, 10);
      if (end != text && *end == '\0' && count > 0) {
        return static_cast<int>(count < 256 ? count : 256);
      }
    }
  }
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
    return CPU_COUNT(&cores);
  }
#endif
  auto count = static_cast<int>(std::thread::hardware_concurrency());
  return count > 0 ? count : 1;
}

/**
 * Wait until `done`, but not longer than it takes to wake a few threads. Other
 * threads may use the core meanwhile. Return done().
 */
template <typename Done>
bool wait_awake(const Done& done) {
  using Clock = std::chrono::steady_clock;
  auto end = Clock::now() + std::chrono::microseconds(50);
  while (!done()) {
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

class Workers {
 public:
  /**
   * The workers of this library in this process. A forked child has none of its
   * parent's threads, but may have locks in the locked state. Workers are never
   * stopped: the process just ends.
   */
  static Workers& get() {
    static std::atomic<Workers*> current = nullptr;
    auto* workers = current.load();
    if (workers != nullptr && workers->process_ == getpid()) {
      return *workers;
    }
    auto* fresh = new Workers;
    if (current.compare_exchange_strong(workers, fresh)) {
      return *fresh;
    }
    delete fresh; // another stream has created them meanwhile
    return *workers;
  }

  /**
   * Call part(first, last) for all of `count` chunks, several or one at a time,
   * in any order, on this thread and on the workers; return when all are done.
   * `part` must not throw.
   */
  void run(int64_t count, const std::function<void(int64_t, int64_t)>& part) {
    std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
    if (mine && !started_) {
      start(thread_count() - 1);
    }
    if (!mine || size_ == 0 || count < 2) {
      return part(0, count);
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      part_ = &part;
      count_ = count;
      // Several chunks at a time, so that all threads end at about the same
      // time.
      most_ = std::max<int64_t>(1, count / (16 * (size_ + 1)));
      next_ = 0;
      ++task_;
    }
    wake_.notify_all();
    work(part, count, most_);
    // Threads that wake up from now on find no work.
    std::unique_lock<std::mutex> lock(mutex_);
    part_ = nullptr;
    lock.unlock();
    auto done = [&] { return active_ == 0; };
    wait_awake(done);
    lock.lock();
    idle_.wait(lock, done);
  }

 private:
  void start(int count) {
    started_ = true;
    for (; size_ < count; ++size_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        break; // the system allows no further threads
      }
    }
  }

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return task_ != seen && part_ != nullptr; });
      seen = task_;
      const auto& part = *part_;
      int64_t count = count_;
      int64_t most = most_;
      ++active_;
      lock.unlock();
      work(part, count, most);
      lock.lock();
      if (--active_ == 0) {
        idle_.notify_one();
      }
      lock.unlock();
      wait_awake([&] { return task_ != seen; });
      lock.lock();
    }
  }

  void work(
      const std::function<void(int64_t, int64_t)>& part,
      int64_t count,
      int64_t most) {
    for (int64_t i = next_.fetch_add(most); i < count;
         i = next_.fetch_add(most)) {
      part(i, std::min(i + most, count));
    }
  }

  const pid_t process_ = getpid();
  std::mutex busy_; // held while a task uses the workers; guards the next two
  bool started_ = false;
  int size_ = 0;
  std::mutex mutex_; // guards the members below
  std::condition_variable wake_;
  std::condition_variable idle_;
  const std::function<void(int64_t, int64_t)>* part_ = nullptr;
  int64_t count_ = 0;
  int64_t most_ = 1;
  std::atomic<uint64_t> task_ = 0; // also read without the mutex
  std::atomic<int> active_ = 0; // likewise
  std::atomic<int64_t> next_ = 0;
};

} // namespace mlxgen::cpu

namespace mlxgen {

/**
 * For kernels over whole arrays: call part(first, last) for all of `count`
 * items, on all cores if the work is large enough. An item takes about `cost`
 * operations. `part` must not throw, and must not call this function.
 */
inline void share(
    int64_t count,
    int64_t cost,
    const std::function<void(int64_t, int64_t)>& part) {
  // Waking 15 threads takes 25 to 50 microseconds, in which one thread does
  // 200,000 to 400,000 simple operations.
  if (count > 1 && double(count) * double(cost) > 200'000) {
    cpu::Workers::get().run(count, part);
  } else if (count > 0) {
    part(0, count);
  }
}

} // namespace mlxgen
