//! Streams: the device that computes an operator, and the order of computations.

use std::ffi::c_int;
use std::ptr;

use crate::error::{Result, call};
use crate::ffi;

/// A stream of the thread that made it. `Stream::default()` is MLX's default stream.
#[derive(Debug)]
pub struct Stream(pub(crate) ffi::mlx_stream);

impl Stream {
    /// The default stream of the CPU.
    ///
    /// # Errors
    ///
    /// MLX reports an error.
    pub fn cpu() -> Result<Self> {
        // SAFETY: the function has no requirements.
        Self::made(|| unsafe { ffi::default_cpu_stream_new() })
    }

    /// The default stream of the GPU.
    ///
    /// # Errors
    ///
    /// MLX has no GPU.
    pub fn gpu() -> Result<Self> {
        // SAFETY: the function has no requirements.
        Self::made(|| unsafe { ffi::default_gpu_stream_new() })
    }

    fn made(function: impl FnOnce() -> ffi::mlx_stream) -> Result<Self> {
        let mut stream = Self::default();
        call(|| {
            stream.0 = function();
            c_int::from(stream.0.ctx.is_null())
        })?;
        Ok(stream)
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self(ffi::mlx_stream { ctx: ptr::null_mut() })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody else frees it. Freeing a stream does not fail.
        let _ = call(|| unsafe { ffi::stream_free(self.0) });
    }
}
