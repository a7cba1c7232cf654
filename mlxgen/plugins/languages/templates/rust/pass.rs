//! Arguments in the form that C expects.

#![allow(dead_code)] // kinds of arguments that no operator of this package has

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::{Number, ffi};

/// The handle of an optional array; that of `None` is null.
pub(crate) fn array(array: Option<&Array>) -> ffi::mlx_array {
    array.map_or(ffi::mlx_array { ctx: ptr::null_mut() }, |array| array.0)
}

/// The handles of optional arrays.
pub(crate) fn arrays(arrays: &[Option<&Array>]) -> Vec<ffi::mlx_array> {
    arrays.iter().map(|one| array(*one)).collect()
}

/// The items of all lists, and the sizes of the lists.
pub(crate) fn lists(lists: &[&[i32]]) -> (Vec<i32>, Vec<usize>) {
    (lists.concat(), lists.iter().map(|list| list.len()).collect())
}

/// The pointer to an optional list; that of `None` is null.
pub(crate) fn pointer<T>(list: Option<&[T]>) -> *const T {
    list.map_or(ptr::null(), <[T]>::as_ptr)
}

/// The size of an optional list.
pub(crate) fn size<T>(list: Option<&[T]>) -> usize {
    list.map_or(0, <[T]>::len)
}

/// The pointer to an optional string; that of `None` is null.
pub(crate) fn text(text: Option<&CStr>) -> *const c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

/// A string that ends with NUL.
pub(crate) fn owned(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(format!("the string {text:?} contains NUL")))
}

macro_rules! optional {
    ($($value:ty => $name:ident, $none:expr);+ $(;)?) => {
        $(
            impl From<Option<$value>> for ffi::$name {
                fn from(given: Option<$value>) -> Self {
                    let has_value = given.is_some();
                    Self { value: given.map_or($none, Into::into), has_value }
                }
            }
        )+
    };
}

optional! {
    bool => mlxgen_optional_bool, false;
    i32 => mlx_optional_int, 0;
    i64 => mlxgen_optional_int64, 0;
    f32 => mlx_optional_float, 0.0;
    f64 => mlxgen_optional_double, 0.0;
    crate::Dtype => mlx_optional_dtype, crate::Dtype::Bool;
    Number => mlxgen_optional_number, Number::Bool(false).into();
}

impl From<Number> for ffi::mlxgen_number {
    fn from(number: Number) -> Self {
        let (kind, integer, real) = match number {
            Number::Bool(value) => (0, value.into(), 0.0),
            Number::Int(value) => (1, value, 0.0),
            Number::Float(value) => (2, 0, value),
        };
        Self { kind, integer, real }
    }
}
