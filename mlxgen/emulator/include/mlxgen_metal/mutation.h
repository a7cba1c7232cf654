// Records the launches of kernels and changes one property of them. In this way
// `tools/mutation` creates mutants of launchers without compiling them again.
// Everything that a launcher passes to the command encoder becomes part of a
// Launch, so that a missing binding or a wrong size is a change of the Launch.
//
//   MLXGEN_METAL_TRACE   a file that gets a line of JSON for each launch
//   MLXGEN_METAL_MUTATE  "<kernel>[,<kernel>...] <change> [<number>...]":
//     drop I         nothing is bound to buffer I
//     swap I J       exchange the bindings of buffers I and J
//     role I         bind an input as an output, or an output as an input
//     unfilled I     the launcher does not initialize output I
//     resize I N D   set_bytes with N / D times the size
//     value I        set_bytes with other numbers
//     grid D N       N more (or fewer) threads along dimension D
//     group D N M    N / M times the threadgroup along dimension D
//     by_groups      the grid counts threadgroups instead of threads, or
//     threads
//                    instead of threadgroups; not in launches that would then
//                    take minutes
//     kernel NAME    another kernel of the same library
//     missing        the library has no such kernel

#pragma once

#include <stdio.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlxgen_metal/abi.h"

namespace mlxgen_metal {

using Bytes = std::map<int, std::shared_ptr<std::vector<uint8_t>>>;

struct Mutation {
  std::vector<std::string> kernels;
  std::string change;
  std::vector<std::string> arguments;

  long number(size_t i) const {
    return i < arguments.size() ? std::atol(arguments[i].c_str()) : 0;
  }
  bool concerns(const char* kernel) const {
    return std::find(kernels.begin(), kernels.end(), kernel) != kernels.end();
  }
};

/** The request of $MLXGEN_METAL_MUTATE. */
inline const Mutation& mutation() {
  static const Mutation value = [] {
    Mutation out;
    auto given = std::getenv("MLXGEN_METAL_MUTATE");
    std::istringstream words(given ? given : "");
    std::string names;
    words >> names >> out.change;
    for (std::string word; words >> word;) {
      out.arguments.push_back(word);
    }
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      out.kernels.push_back(name);
    }
    return out;
  }();
  return value;
}

/** Other bytes for set_bytes: other numbers, or another number of them. */
inline void set_bytes(
    Launch& launch,
    Bytes& bytes,
    int index,
    std::vector<uint8_t> changed) {
  auto& argument = launch.arguments[index];
  bytes[index] = std::make_shared<std::vector<uint8_t>>(std::move(changed));
  argument.data = argument.start = bytes[index]->data();
  argument.size = bytes[index]->size();
}

/** Every number plus one, but true for false and false for true. */
inline std::vector<uint8_t> other_numbers(std::vector<uint8_t> v, Code code) {
  if (code == float32) {
    for (size_t i = 0; i + sizeof(float) <= v.size(); i += sizeof(float)) {
      float x;
      std::memcpy(&x, &v[i], sizeof(x));
      x += 1;
      std::memcpy(&v[i], &x, sizeof(x));
    }
    return v;
  }
  size_t item = code >= int64 ? 8 : code >= int32 ? 4 : code >= int16 ? 2 : 1;
  for (size_t i = 0; i + item <= v.size(); i += item) {
    if (code == boolean) {
      v[i] = !v[i];
    } else {
      for (size_t k = i; k < i + item && ++v[k] == 0; ++k) {
      }
    }
  }
  return v;
}

/** Change a launch if $MLXGEN_METAL_MUTATE names its kernel. */
inline void mutate(Launch& launch, Bytes& bytes, const Library& library) {
  const auto& m = mutation();
  if (!m.concerns(library.entries[launch.entry].name)) {
    return;
  }
  auto i = m.number(0);
  if (i < 0 || i >= max_buffers) {
    return;
  }
  auto& argument = launch.arguments[i];
  if (m.change == "drop") {
    argument = {};
  } else if (m.change == "swap") {
    std::swap(argument, launch.arguments[m.number(1)]);
  } else if (m.change == "role") {
    argument.output = !argument.output;
  } else if (m.change == "unfilled") {
    argument.fill = 1;
  } else if (m.change == "resize") {
    auto changed = *bytes.at(i);
    changed.resize(changed.size() * m.number(1) / m.number(2));
    set_bytes(launch, bytes, i, std::move(changed));
  } else if (m.change == "value") {
    set_bytes(
        launch, bytes, i, other_numbers(*bytes.at(i), Code(argument.code)));
  } else if (m.change == "grid") {
    auto size = int64_t(launch.grid[i]) + m.number(1);
    launch.grid[i] = std::max<int64_t>(size, 1);
  } else if (m.change == "group") {
    auto size = launch.group[i] * m.number(1) / m.number(2);
    launch.group[i] = std::max<uint64_t>(size, 1);
  } else if (m.change == "by_groups") {
    uint64_t threads = 1;
    for (int d = 0; d < 3; ++d) {
      threads *= launch.grid[d] * launch.group[d];
    }
    if (launch.by_threadgroups || threads <= uint64_t(1) << 18) {
      launch.by_threadgroups = !launch.by_threadgroups;
    }
  } else if (m.change == "missing") {
    throw std::runtime_error(
        std::string("[metal emulation] There is no kernel named ") +
        library.entries[launch.entry].name);
  } else if (m.change == "kernel" && !m.arguments.empty()) {
    for (int k = 0; k < library.entry_count; ++k) {
      if (m.arguments[0] == library.entries[k].name) {
        launch.entry = k;
      }
    }
  }
}

/** Append a launch to the file $MLXGEN_METAL_TRACE. */
inline void
trace(const Launch& launch, const Library& library, const std::string& name) {
  static const char* const path = std::getenv("MLXGEN_METAL_TRACE");
  if (path == nullptr) {
    return;
  }
  const auto& entry = library.entries[launch.entry];
  std::ostringstream out;
  auto triple = [&out](const char* name, const uint64_t* v) {
    out << ", \"" << name << "\": [" << v[0] << ", " << v[1] << ", " << v[2]
        << "]";
  };
  out << "{\"library\": \"" << name << "\", \"kernel\": \"" << entry.name
      << "\"";
  triple("grid", launch.grid);
  triple("group", launch.group);
  out << ", \"buffers\": [";
  auto parameters = entry.parameters();
  const char* separator = "";
  for (int i = 0; i < entry.count; ++i) {
    const auto& p = parameters[i];
    if (p.kind != buffer || !launch.arguments[p.index].bound) {
      continue;
    }
    const auto& a = launch.arguments[p.index];
    const char* kind = a.bytes ? "bytes"
        : !a.output            ? "input"
        : a.fill               ? "output"
                               : "filled";
    out << separator << "[" << p.index << ", \"" << p.name << "\", \"" << kind
        << "\", " << p.size << "]";
    separator = ", ";
  }
  out << "]}\n";
  auto line = out.str();
  if (FILE* file = fopen(path, "a")) {
    fwrite(line.data(), 1, line.size(), file);
    fclose(file);
  }
}

} // namespace mlxgen_metal
