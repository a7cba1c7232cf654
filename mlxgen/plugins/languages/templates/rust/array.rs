//! Arrays of MLX that free themselves, and the types of their elements.

use std::ffi::{c_int, c_void};
use std::{fmt, mem, ptr, slice};

use crate::error::{Error, Result, call};
use crate::ffi;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// Booleans: [`bool`].
    Bool = 0,
    /// Unsigned integers of 8 bits: [`u8`].
    Uint8 = 1,
    /// Unsigned integers of 16 bits: [`u16`].
    Uint16 = 2,
    /// Unsigned integers of 32 bits: [`u32`].
    Uint32 = 3,
    /// Unsigned integers of 64 bits: [`u64`].
    Uint64 = 4,
    /// Integers of 8 bits: [`i8`].
    Int8 = 5,
    /// Integers of 16 bits: [`i16`].
    Int16 = 6,
    /// Integers of 32 bits: [`i32`].
    Int32 = 7,
    /// Integers of 64 bits: [`i64`].
    Int64 = 8,
    /// Half precision: [`F16`].
    Float16 = 9,
    /// Single precision: [`f32`].
    Float32 = 10,
    /// Double precision, only on the CPU: [`f64`].
    Float64 = 11,
    /// Half precision with the exponents of single precision: [`Bf16`].
    Bfloat16 = 12,
    /// Complex numbers of two [`f32`]: [`Complex64`].
    Complex64 = 13,
}

impl Dtype {
    const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Complex64,
    ];
}

/// A float of half precision, as its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

impl From<F16> for f32 {
    fn from(half: F16) -> Self {
        let (exponent, fraction) = ((half.0 >> 10) & 0x1f, half.0 & 0x3ff);
        let size = match exponent {
            0 => f32::from(fraction) * 2f32.powi(-24),
            0x1f => f32::from_bits(0x7f80_0000 | u32::from(fraction) << 13),
            _ => f32::from_bits((u32::from(exponent) + 112) << 23 | u32::from(fraction) << 13),
        };
        if half.0 >> 15 == 1 { -size } else { size }
    }
}

/// Rounds to the nearest half, and ties to even.
impl From<f32> for F16 {
    fn from(number: f32) -> Self {
        let (bits, sign) = (number.to_bits() & 0x7fff_ffff, (number.to_bits() >> 16) & 0x8000);
        let half = match f32::from_bits(bits) {
            size if size.is_nan() => 0x7e00,
            size if size >= 65520.0 => 0x7c00,
            // Subnormal: the sum has the spacing of subnormal halves, so that it is rounded.
            size if size < 6.103_515_6e-5 => (size + 0.5).to_bits() - 0.5f32.to_bits(),
            _ => {
                let odd = bits >> 13 & 1;
                (bits + 0xfff + odd - (112 << 23)) >> 13
            }
        };
        Self((half | sign) as u16)
    }
}

/// The upper 16 bits of an [`f32`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl From<Bf16> for f32 {
    fn from(half: Bf16) -> Self {
        f32::from_bits(u32::from(half.0) << 16)
    }
}

/// Rounds to the nearest number, and ties to even.
impl From<f32> for Bf16 {
    fn from(number: f32) -> Self {
        let bits = number.to_bits();
        let odd = bits >> 16 & 1;
        let rounded = if number.is_nan() { bits | 1 << 22 } else { bits + 0x7fff + odd };
        Self((rounded >> 16) as u16)
    }
}

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex64 {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

mod sealed {
    pub trait Sealed {}
}

/// The Rust types of array elements.
pub trait Element: Copy + sealed::Sealed {
    /// The dtype of arrays with such elements.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),+ $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )+
    };
}

elements! {
    bool => Bool,
    u8 => Uint8,
    u16 => Uint16,
    u32 => Uint32,
    u64 => Uint64,
    i8 => Int8,
    i16 => Int16,
    i32 => Int32,
    i64 => Int64,
    F16 => Float16,
    f32 => Float32,
    f64 => Float64,
    Bf16 => Bfloat16,
    Complex64 => Complex64,
}

/// An array of MLX: computed when its data is needed, and freed when it is dropped.
///
/// A clone shares the data. An array can move to another thread; evaluate it before, because only
/// the thread of its stream computes an array.
pub struct Array(pub(crate) ffi::mlx_array);

// SAFETY: MLX counts references atomically, and `call` and `drop` hold one lock.
unsafe impl Send for Array {}

impl Array {
    /// An array without a value, to be the result of a call.
    pub(crate) fn empty() -> Self {
        Self(ffi::mlx_array { ctx: ptr::null_mut() })
    }

    /// Copies the elements of a row-contiguous array of this shape.
    ///
    /// # Errors
    ///
    /// The shape has another number of elements.
    pub fn from_slice<T: Element>(data: &[T], shape: &[i32]) -> Result<Self> {
        if count(shape) != Some(data.len()) {
            let message = format!("{} elements do not have the shape {shape:?}", data.len());
            return Err(Error::new(message));
        }
        let (from, dim) = (data.as_ptr().cast(), shape.len() as c_int);
        let mut array = Self::empty();
        call(|| {
            // SAFETY: MLX copies `data`, which has as many elements as `shape` says.
            array.0 = unsafe { ffi::array_new_data(from, shape.as_ptr(), dim, T::DTYPE) };
            c_int::from(array.0.ctx.is_null())
        })?;
        Ok(array)
    }

    /// An array without axes.
    ///
    /// # Errors
    ///
    /// No memory is left.
    pub fn scalar<T: Element>(value: T) -> Result<Self> {
        Self::from_slice(&[value], &[])
    }

    /// Copies the elements of a row-contiguous array of this shape, converted to a dtype.
    ///
    /// Integers are rounded toward zero and limited to their range. A bool is false for zero. The
    /// imaginary part of complex numbers is zero.
    ///
    /// # Errors
    ///
    /// The shape has another number of elements.
    pub fn from_numbers(numbers: &[f64], shape: &[i32], dtype: Dtype) -> Result<Self> {
        macro_rules! of {
            ($convert:expr) => {
                Self::from_slice(&numbers.iter().map($convert).collect::<Vec<_>>(), shape)
            };
        }
        match dtype {
            Dtype::Bool => of!(|number| *number != 0.0),
            Dtype::Uint8 => of!(|number| *number as u8),
            Dtype::Uint16 => of!(|number| *number as u16),
            Dtype::Uint32 => of!(|number| *number as u32),
            Dtype::Uint64 => of!(|number| *number as u64),
            Dtype::Int8 => of!(|number| *number as i8),
            Dtype::Int16 => of!(|number| *number as i16),
            Dtype::Int32 => of!(|number| *number as i32),
            Dtype::Int64 => of!(|number| *number as i64),
            Dtype::Float16 => of!(|number| F16::from(*number as f32)),
            Dtype::Float32 => of!(|number| *number as f32),
            Dtype::Float64 => Self::from_slice(numbers, shape),
            Dtype::Bfloat16 => of!(|number| Bf16::from(*number as f32)),
            Dtype::Complex64 => of!(|number| Complex64 { re: *number as f32, im: 0.0 }),
        }
    }

    /// Numbers from `low` to `high` in no order, always the same, for examples and tests.
    ///
    /// Of integers and bools, both ends are included.
    ///
    /// # Errors
    ///
    /// A size is negative.
    pub fn spread(low: f64, high: f64, shape: &[i32], dtype: Dtype) -> Result<Self> {
        let size = count(shape).ok_or_else(|| Error::new(format!("{shape:?} is not a shape")))?;
        let is_float = dtype as u32 >= Dtype::Float16 as u32;
        let numbers: Vec<f64> = (1..=size)
            // Multiples of the golden ratio, without their integer part, are evenly distributed.
            .map(|i| (i as f64 * 0.618_033_988_749_894_9).fract())
            .map(|part| match is_float {
                true => low + part * (high - low),
                false => (low.ceil() + part * (high.floor() - low.ceil() + 1.0)).floor(),
            })
            .collect();
        Self::from_numbers(&numbers, shape, dtype)
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &[i32] {
        if self.ndim() == 0 {
            return &[];
        }
        // SAFETY: MLX stores as many sizes as axes, and never changes them.
        unsafe { slice::from_raw_parts(ffi::array_shape(self.0), self.ndim()) }
    }

    /// The number of axes.
    pub fn ndim(&self) -> usize {
        // SAFETY: the array has a value.
        unsafe { ffi::array_ndim(self.0) }
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        // SAFETY: the array has a value.
        unsafe { ffi::array_size(self.0) }
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        // SAFETY: the array has a value.
        Dtype::ALL[unsafe { ffi::array_dtype(self.0) } as usize]
    }

    /// Computes the array, if it was not computed yet.
    ///
    /// # Errors
    ///
    /// A computation fails, or belongs to the stream of another thread.
    pub fn eval(&self) -> Result<()> {
        // SAFETY: the array has a value.
        call(|| unsafe { ffi::array_eval(self.0) })
    }

    /// Computes the array, and returns a copy of its elements in row-major order.
    ///
    /// # Errors
    ///
    /// The array has another dtype, or its computation failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.dtype() != T::DTYPE {
            let message = format!("the array is {:?}, not {:?}", self.dtype(), T::DTYPE);
            return Err(Error::new(message));
        }
        let mut data: Vec<T> = Vec::with_capacity(self.size());
        let bytes = mem::size_of::<T>() * self.size();
        // SAFETY: the elements have this type, and the buffer has space for all.
        call(|| unsafe { ffi::array_copy(data.as_mut_ptr().cast(), bytes, self.0) })?;
        // SAFETY: the call initialized all elements.
        unsafe { data.set_len(self.size()) };
        Ok(data)
    }

    /// Computes an array of one element, and returns that.
    ///
    /// # Errors
    ///
    /// The array has another dtype or another number of elements, or its computation failed.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec()?[..] {
            [value] => Ok(value),
            _ => Err(Error::new(format!("the array has {} elements, not one", self.size()))),
        }
    }

    /// The pointer to MLX's `mlx::core::array`, which this array still owns.
    pub fn as_ptr(&self) -> *mut c_void {
        self.0.ctx
    }

    /// The pointer to MLX's `mlx::core::array`, which the caller then owns.
    pub fn into_ptr(self) -> *mut c_void {
        mem::ManuallyDrop::new(self).0.ctx
    }

    /// Takes an `mlx::core::array`.
    ///
    /// # Safety
    ///
    /// The pointer is that of an array that nobody else frees, and that was made with the MLX that
    /// this library uses.
    pub unsafe fn from_ptr(ctx: *mut c_void) -> Self {
        Self(ffi::mlx_array { ctx })
    }

    /// Shares the value of an `mlx::core::array`.
    ///
    /// # Errors
    ///
    /// The pointer is null.
    ///
    /// # Safety
    ///
    /// The pointer is null, or that of an array that was made with the MLX that this library uses.
    pub unsafe fn share_ptr(ctx: *mut c_void) -> Result<Self> {
        let mut array = Self::empty();
        // SAFETY: promised by the caller.
        call(|| unsafe { ffi::array_set(&mut array.0, ffi::mlx_array { ctx }) })?;
        Ok(array)
    }
}

impl Clone for Array {
    fn clone(&self) -> Self {
        // SAFETY: the array has a value.
        unsafe { Self::share_ptr(self.0.ctx) }.expect("memory for another handle")
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // SAFETY: nobody else frees it. Freeing an array does not fail.
        let _ = call(|| unsafe { ffi::array_free(self.0) });
    }
}

/// Prints shape and dtype, and computes nothing.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").field("shape", &self.shape()).field("dtype", &self.dtype()).finish()
    }
}

/// The number of elements of a shape.
fn count(shape: &[i32]) -> Option<usize> {
    let sizes: Option<Vec<usize>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
    let sizes = sizes?;
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.into_iter().try_fold(1usize, usize::checked_mul)
}

/// A list of arrays, for a call or as its result.
pub(crate) struct Arrays(pub(crate) ffi::mlx_vector_array);

#[allow(dead_code)] // not all packages have operators with lists of arrays
impl Arrays {
    pub(crate) fn empty() -> Self {
        Self(ffi::mlx_vector_array { ctx: ptr::null_mut() })
    }

    pub(crate) fn new(arrays: &[&Array]) -> Result<Self> {
        let handles: Vec<ffi::mlx_array> = arrays.iter().map(|array| array.0).collect();
        let mut made = Self::empty();
        call(|| {
            // SAFETY: MLX copies that many handles.
            made.0 = unsafe { ffi::vector_array_new_data(handles.as_ptr(), handles.len()) };
            c_int::from(made.0.ctx.is_null())
        })?;
        Ok(made)
    }

    pub(crate) fn into_vec(self) -> Result<Vec<Array>> {
        // SAFETY: the list has a value.
        let size = unsafe { ffi::vector_array_size(self.0) };
        (0..size)
            .map(|i| {
                let mut array = Array::empty();
                // SAFETY: the index is below the size.
                call(|| unsafe { ffi::vector_array_get(&mut array.0, self.0, i) })?;
                Ok(array)
            })
            .collect()
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        // SAFETY: nobody else frees it. Freeing a list does not fail.
        let _ = call(|| unsafe { ffi::vector_array_free(self.0) });
    }
}
