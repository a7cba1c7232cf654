//! Errors of calls, whose messages the library stores per thread.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, Once, PoisonError};
use std::{fmt, ptr};

use crate::ffi;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a call failed, such as a wrong shape or dtype.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    message: String,
}

impl Error {
    pub(crate) fn new(message: String) -> Self {
        Self { message }
    }

    /// The message, as in Python.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Keeps messages from stderr; `call` reads them.
extern "C" fn silent(_: *const c_char, _: *mut c_void) {}

// Arrays of several threads can share parts of a graph, which MLX changes without a lock.
static LOCK: Mutex<()> = Mutex::new(());
static HANDLER: Once = Once::new();

/// Runs a call that returns 0, or another number after an error.
///
/// Calls of several threads take turns.
pub(crate) fn call(function: impl FnOnce() -> c_int) -> Result<()> {
    // SAFETY: the handler needs no data.
    HANDLER.call_once(|| unsafe { ffi::set_error_handler(Some(silent), ptr::null_mut(), None) });
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    match function() {
        0 => Ok(()),
        // SAFETY: a string that ends with NUL, and is valid until the next call of this thread.
        _ => Err(Error::new(unsafe { CStr::from_ptr(ffi::last_error()) }.to_string_lossy().into())),
    }
}
