// What the Rust programs of the tests share: arrays from a file, and results and errors to another.
// The form of the files is that of tests/c/calls.h.

use std::{env, fs, mem, slice};

use PACKAGE::{Array, Bf16, Complex64, Dtype, Element, F16, Result};

struct Files {
    given: Vec<u8>,
    at: usize,
    written: Vec<u8>,
}

impl Files {
    fn open() -> Self {
        let given = fs::read(env::var("CALLS_GIVEN").unwrap()).unwrap();
        Self { given, at: 0, written: Vec::new() }
    }

    fn close(self) {
        assert_eq!(self.at, self.given.len(), "arrays are left");
        fs::write(env::var("CALLS_WRITTEN").unwrap(), self.written).unwrap();
    }

    fn bytes(&mut self, size: usize) -> &[u8] {
        self.at += size;
        &self.given[self.at - size..self.at]
    }

    fn int(&mut self) -> i32 {
        i32::from_ne_bytes(self.bytes(4).try_into().unwrap())
    }

    /// The next array: dtype, number of axes, their sizes, number of bytes, elements.
    fn take(&mut self) -> Array {
        let (dtype, dim) = (self.int(), self.int());
        let shape: Vec<i32> = (0..dim).map(|_| self.int()).collect();
        let size = self.int() as usize;
        let bytes = self.bytes(size);
        with_dtype(dtype, Make(bytes, &shape)).unwrap()
    }

    fn put(&mut self, result: Result<Array>) {
        let done = result.and_then(|array| Ok((with_dtype(array.dtype() as i32, Read(&array))?, array)));
        match done {
            Ok((data, array)) => {
                self.put_ints(&[array.dtype() as i32, array.ndim() as i32]);
                self.put_ints(array.shape());
                self.put_ints(&[data.len() as i32]);
                self.written.extend(data);
            }
            Err(error) => self.put_error(error.message()),
        }
    }

    /// A list: its number of arrays, negative as no dtype is, then the arrays.
    #[allow(dead_code)]
    fn put_list(&mut self, result: Result<Vec<Array>>) {
        match result {
            Ok(arrays) => {
                self.put_ints(&[-2 - arrays.len() as i32]);
                arrays.into_iter().for_each(|array| self.put(Ok(array)));
            }
            Err(error) => self.put_error(error.message()),
        }
    }

    fn put_error(&mut self, message: &str) {
        self.put_ints(&[-1, message.len() as i32]);
        self.written.extend(message.bytes());
    }

    fn put_ints(&mut self, ints: &[i32]) {
        self.written.extend(ints.iter().flat_map(|int| int.to_ne_bytes()));
    }
}

trait Typed<R> {
    fn run<T: Element>(self) -> R;
}

struct Make<'a>(&'a [u8], &'a [i32]);

impl Typed<Result<Array>> for Make<'_> {
    fn run<T: Element>(self) -> Result<Array> {
        let size = self.0.len() / mem::size_of::<T>();
        let mut data: Vec<T> = Vec::with_capacity(size);
        // SAFETY: the bytes are elements of this type, which Python wrote.
        unsafe {
            std::ptr::copy_nonoverlapping(self.0.as_ptr(), data.as_mut_ptr().cast(), self.0.len());
            data.set_len(size);
        }
        Array::from_slice(&data, self.1)
    }
}

struct Read<'a>(&'a Array);

impl Typed<Result<Vec<u8>>> for Read<'_> {
    fn run<T: Element>(self) -> Result<Vec<u8>> {
        let data = self.0.to_vec::<T>()?;
        // SAFETY: elements have no padding.
        let bytes = unsafe { slice::from_raw_parts(data.as_ptr().cast(), mem::size_of_val(&data[..])) };
        Ok(bytes.to_vec())
    }
}

fn with_dtype<R>(dtype: i32, function: impl Typed<R>) -> R {
    const CODES: [Dtype; 14] = [
        Dtype::Bool,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Float16,
        Dtype::Float32,
        Dtype::Float64,
        Dtype::Bfloat16,
        Dtype::Complex64,
    ];
    match CODES[dtype as usize] {
        Dtype::Bool => function.run::<bool>(),
        Dtype::Uint8 => function.run::<u8>(),
        Dtype::Uint16 => function.run::<u16>(),
        Dtype::Uint32 => function.run::<u32>(),
        Dtype::Uint64 => function.run::<u64>(),
        Dtype::Int8 => function.run::<i8>(),
        Dtype::Int16 => function.run::<i16>(),
        Dtype::Int32 => function.run::<i32>(),
        Dtype::Int64 => function.run::<i64>(),
        Dtype::Float16 => function.run::<F16>(),
        Dtype::Float32 => function.run::<f32>(),
        Dtype::Float64 => function.run::<f64>(),
        Dtype::Bfloat16 => function.run::<Bf16>(),
        Dtype::Complex64 => function.run::<Complex64>(),
    }
}
