//! The conversions of mlx-rs.

use std::ffi::c_void;

#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlx_array {
    pub ctx: *mut c_void,
}

pub struct Array {
    c_array: mlx_array,
}

impl Array {
    /// # Safety
    /// The array owns the handle.
    pub unsafe fn from_ptr(c_array: mlx_array) -> Array {
        Array { c_array }
    }

    pub fn as_ptr(&self) -> mlx_array {
        self.c_array
    }
}
