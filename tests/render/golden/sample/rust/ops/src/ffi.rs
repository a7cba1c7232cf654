//! The functions of ops's C library, and their types.

#![allow(non_camel_case_types)] // the names in C
#![allow(dead_code)] // types and functions that no operator of this package uses

use std::ffi::{c_char, c_int, c_void};

use crate::Dtype;

/// A pointer to an `mlx::core::array`, or null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx_array {
    pub ctx: *mut c_void,
}

/// A pointer to a `std::vector<mlx::core::array>`, or null.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx_vector_array {
    pub ctx: *mut c_void,
}

/// A pointer to an `mlx::core::Stream`; null is the default stream.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx_stream {
    pub ctx: *mut c_void,
}

/// A number whose member is that of its kind: 0 and 1 for bools and integers, 2 for floats.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlxgen_number {
    pub kind: c_int,
    pub integer: i64,
    pub real: f64,
}

macro_rules! optional {
    ($($name:ident: $value:ty),+ $(,)?) => {
        $(
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                pub value: $value,
                pub has_value: bool,
            }
        )+
    };
}

optional! {
    mlx_optional_int: c_int,
    mlx_optional_float: f32,
    mlx_optional_dtype: Dtype,
    mlxgen_optional_bool: bool,
    mlxgen_optional_int64: i64,
    mlxgen_optional_double: f64,
    mlxgen_optional_number: mlxgen_number,
}

pub type Handler = extern "C" fn(*const c_char, *mut c_void);
pub type Destructor = extern "C" fn(*mut c_void);

unsafe extern "C" {
    #[link_name = "ops_set_error_handler"]
    pub fn set_error_handler(handler: Option<Handler>, data: *mut c_void, dtor: Option<Destructor>);
    #[link_name = "ops_last_error"]
    pub fn last_error() -> *const c_char;
    #[link_name = "ops_array_new_data"]
    pub fn array_new_data(
        data: *const c_void,
        shape: *const c_int,
        dim: c_int,
        dtype: Dtype,
    ) -> mlx_array;
    #[link_name = "ops_array_set"]
    pub fn array_set(arr: *mut mlx_array, src: mlx_array) -> c_int;
    #[link_name = "ops_array_free"]
    pub fn array_free(arr: mlx_array) -> c_int;
    #[link_name = "ops_array_eval"]
    pub fn array_eval(arr: mlx_array) -> c_int;
    #[link_name = "ops_array_size"]
    pub fn array_size(arr: mlx_array) -> usize;
    #[link_name = "ops_array_ndim"]
    pub fn array_ndim(arr: mlx_array) -> usize;
    #[link_name = "ops_array_shape"]
    pub fn array_shape(arr: mlx_array) -> *const c_int;
    #[link_name = "ops_array_dtype"]
    pub fn array_dtype(arr: mlx_array) -> u32;
    #[link_name = "ops_array_copy"]
    pub fn array_copy(data: *mut c_void, nbytes: usize, arr: mlx_array) -> c_int;
    #[link_name = "ops_vector_array_new_data"]
    pub fn vector_array_new_data(data: *const mlx_array, size: usize) -> mlx_vector_array;
    #[link_name = "ops_vector_array_free"]
    pub fn vector_array_free(vec: mlx_vector_array) -> c_int;
    #[link_name = "ops_vector_array_size"]
    pub fn vector_array_size(vec: mlx_vector_array) -> usize;
    #[link_name = "ops_vector_array_get"]
    pub fn vector_array_get(res: *mut mlx_array, vec: mlx_vector_array, idx: usize) -> c_int;
    #[link_name = "ops_default_cpu_stream_new"]
    pub fn default_cpu_stream_new() -> mlx_stream;
    #[link_name = "ops_default_gpu_stream_new"]
    pub fn default_gpu_stream_new() -> mlx_stream;
    #[link_name = "ops_stream_free"]
    pub fn stream_free(stream: mlx_stream) -> c_int;
}

// The operators.
unsafe extern "C" {
    pub fn ops_exp2(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_softplus(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_logsumexp(
        res: *mut mlx_array,
        x: mlx_array,
        axis: *const c_int,
        axis_num: usize,
        keepdims: bool,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_twice(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_softcap(res: *mut mlx_array, x: mlx_array, cap: f64, s: mlx_stream) -> c_int;
    pub fn ops_dense(
        res: *mut mlx_array,
        x: mlx_array,
        w: mlx_array,
        b: mlx_array,
        transpose: bool,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_moments(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        axis: c_int,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_scaled(
        res: *mut mlx_vector_array,
        xs: mlx_vector_array,
        a: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_weird(
        res: *mut mlx_array,
        x: mlx_array,
        mode: *const c_char,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_straight(res: *mut mlx_array, x: mlx_array, y: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_both(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        y: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_calls(res: *mut mlx_array, x: mlx_array, n: c_int, s: mlx_stream) -> c_int;
    pub fn ops_ranges(res: *mut mlx_array, n: c_int, step: f32, s: mlx_stream) -> c_int;
    pub fn ops_square(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_scale(res: *mut mlx_array, x: mlx_array, a: f64, s: mlx_stream) -> c_int;
    pub fn ops_scale2(res: *mut mlx_array, x: mlx_array, a: f64, b: f64, s: mlx_stream) -> c_int;
    pub fn ops_blend(
        res: *mut mlx_array,
        x: mlx_array,
        y: mlx_array,
        n: c_int,
        flip: bool,
        mode: *const c_char,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_parts(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        a: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_cube(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_bent(res: *mut mlx_array, x: mlx_array, a: f64, s: mlx_stream) -> c_int;
    pub fn ops_powers(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_step(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_total(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_halves(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_join(res: *mut mlx_array, xs: mlx_vector_array, s: mlx_stream) -> c_int;
    pub fn ops_segments(
        res: *mut mlx_array,
        x: mlx_array,
        ids: mlx_array,
        count: c_int,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_norm(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        weight: mlx_array,
        eps: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_all_types(
        res: *mut mlx_array,
        x: mlx_array,
        a: f64,
        n: c_int,
        flag: bool,
        text: *const c_char,
        mode: *const c_char,
        list: *const c_int,
        list_num: usize,
        shape: *const c_int,
        shape_num: usize,
        axes: *const c_int,
        axes_num: usize,
        dtype: Dtype,
        maybe: mlxgen_optional_double,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_count_bits(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_put(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        cache: mlx_array,
        row: mlx_array,
        place: c_int,
        least: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_diagonal(
        res: *mut mlx_array,
        x: mlx_array,
        weight: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_by_hand(res: *mut mlx_array, x: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_carry(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        x: mlx_array,
        state: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_gain(res: *mut mlx_array, x: mlx_array, gain: f64, s: mlx_stream) -> c_int;
    pub fn ops_rows(res: *mut mlx_array, x: mlx_array, n: c_int, s: mlx_stream) -> c_int;
    pub fn ops_pick(
        res: *mut mlx_array,
        self_: mlx_array,
        default_arg: mlx_array,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_pick_dim(
        res: *mut mlx_array,
        self_: mlx_array,
        dim: c_int,
        EPS_arg: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops__picked(res: *mut mlx_array, self_: mlx_array, s: mlx_stream) -> c_int;
    pub fn ops_normalize(
        res_0: *mut mlx_array,
        res_1: *mut mlx_array,
        res_2: *mut mlx_array,
        x: mlx_array,
        weight: mlx_array,
        eps: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_masked(
        res: *mut mlx_array,
        x: mlx_array,
        mask_mode: *const c_char,
        mask: mlx_array,
        fill: f64,
        s: mlx_stream,
    ) -> c_int;
    pub fn ops_gated(
        res: *mut mlx_array,
        x: mlx_array,
        gate_mode: *const c_char,
        gate: mlx_array,
        s: mlx_stream,
    ) -> c_int;
}
