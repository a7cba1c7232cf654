// Tests of the part of the crate that is the same in every package: arrays, errors, threads.

use std::fs;
use std::sync::mpsc;
use std::thread;

use PACKAGE::{Array, Bf16, Complex64, Dtype, Element, F16, Number, Stream};

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(data: &[T]) {
    let shape = [data.len() as i32 / 2, 2];
    let array = Array::from_slice(data, &shape).unwrap();
    assert_eq!((array.dtype(), array.shape(), array.ndim()), (T::DTYPE, &shape[..], 2));
    assert_eq!(array.size(), data.len());
    assert_eq!(array.to_vec::<T>().unwrap(), data);
}

#[test]
fn elements() {
    round_trip(&[true, false, false, true]);
    round_trip(&[0u8, 1, 2, u8::MAX]);
    round_trip(&[0u16, 1, 2, u16::MAX]);
    round_trip(&[0u32, 1, 2, u32::MAX]);
    round_trip(&[0u64, 1, 2, u64::MAX]);
    round_trip(&[i8::MIN, -1, 2, i8::MAX]);
    round_trip(&[i16::MIN, -1, 2, i16::MAX]);
    round_trip(&[i32::MIN, -1, 2, i32::MAX]);
    round_trip(&[i64::MIN, -1, 2, i64::MAX]);
    round_trip(&[F16(0x3c00), F16(0x8000), F16(1), F16(0x7bff)]);
    round_trip(&[f32::MIN, -0.0, f32::INFINITY, 1e-45]);
    round_trip(&[f64::MIN, -0.0, f64::INFINITY, 5e-324]);
    round_trip(&[Bf16(0x3f80), Bf16(0x8000), Bf16(1), Bf16(0x7f7f)]);
    round_trip(&[Complex64 { re: 1.0, im: -2.0 }, Complex64::default()]);
    round_trip::<f32>(&[]);
}

#[test]
fn shapes() {
    let scalar = Array::scalar(2.5f32).unwrap();
    assert_eq!((scalar.shape(), scalar.item::<f32>().unwrap()), (&[][..], 2.5));
    assert_eq!(Array::from_slice::<i32>(&[], &[3, 0, 2]).unwrap().shape(), [3, 0, 2]);
    let error = |shape: &[i32]| Array::from_slice(&[1u8, 2, 3], shape).unwrap_err().to_string();
    assert_eq!(error(&[2]), "3 elements do not have the shape [2]");
    assert_eq!(error(&[-3]), "3 elements do not have the shape [-3]");
    assert_eq!(error(&[-3, -1]), "3 elements do not have the shape [-3, -1]");
    assert!(error(&[i32::MAX; 3]).ends_with("the shape [2147483647, 2147483647, 2147483647]"));
    assert!(Array::spread(0.0, 1.0, &[-1], Dtype::Float32).is_err());
    let many = Array::from_slice(&[1i32, 2], &[2]).unwrap();
    assert_eq!(many.item::<i32>().unwrap_err().message(), "the array has 2 elements, not one");
    assert_eq!(many.to_vec::<f32>().unwrap_err().message(), "the array is Int32, not Float32");
    assert_eq!(format!("{many:?}"), "Array { shape: [2], dtype: Int32 }");
}

#[test]
fn numbers() {
    let given = [-1.5, 0.0, 0.4, 300.0, f64::NAN];
    let made = |dtype| Array::from_numbers(&given, &[5], dtype).unwrap();
    assert_eq!(made(Dtype::Uint8).to_vec::<u8>().unwrap(), [0, 0, 0, 255, 0]);
    assert_eq!(made(Dtype::Int16).to_vec::<i16>().unwrap(), [-1, 0, 0, 300, 0]);
    assert_eq!(made(Dtype::Bool).to_vec::<bool>().unwrap(), [true, false, true, true, true]);
    assert_eq!(made(Dtype::Complex64).to_vec::<Complex64>().unwrap()[0].re, -1.5);
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32, Dtype::Float64] {
        assert_eq!(made(dtype).dtype(), dtype);
    }
    let drawn = Array::spread(-2.0, 3.0, &[1000], Dtype::Float64).unwrap().to_vec::<f64>().unwrap();
    assert!(drawn.iter().all(|number| (-2.0..3.0).contains(number)));
    let drawn = Array::spread(-2.0, 3.0, &[1000], Dtype::Int32).unwrap().to_vec::<i32>().unwrap();
    assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&-2), Some(&3)));
    assert_eq!(Number::from(2), Number::Int(2));
    assert_eq!(Number::from(2.0f32), Number::Float(2.0));
    assert_eq!(Number::from(true), Number::Bool(true));
}

/// Every half, and the numbers between neighbors: the middle goes to the even one.
fn rounds(bits: impl Fn(u16) -> f32, half: impl Fn(f32) -> u16, infinity: u16) {
    for low in 0..infinity - 1 {
        let (a, b) = (bits(low), bits(low + 1));
        assert_eq!(half(a), low);
        assert_eq!(half(-a), low | 0x8000);
        let middle = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
        assert_eq!(half(middle), low + low % 2);
        assert_eq!(half(middle.next_up()), low + 1);
        assert_eq!(half(middle.next_down()), low);
    }
    assert_eq!(half(f32::INFINITY), infinity);
    assert_eq!(half(f32::MAX), infinity);
    assert_eq!(bits(infinity), f32::INFINITY);
    assert!(bits(half(f32::NAN)).is_nan());
}

#[test]
fn halves() {
    rounds(|bits| F16(bits).into(), |number| F16::from(number).0, 0x7c00);
    rounds(|bits| Bf16(bits).into(), |number| Bf16::from(number).0, 0x7f80);
    assert_eq!(f32::from(F16(0x3555)), 0.333_251_95);
    assert_eq!((F16::from(65519.9).0, F16::from(65520.0).0), (0x7bff, 0x7c00));
}

fn resident_pages() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_is_freed() {
    let megabyte = vec![1.0f32; 1 << 18];
    let shape = [1 << 18];
    let before = resident_pages();
    for _ in 0..300 {
        let array = Array::from_slice(&megabyte, &shape).unwrap();
        let clone = array.clone();
        assert_ne!(array.as_ptr(), clone.as_ptr());
        drop(array);
        assert_eq!(clone.to_vec::<f32>().unwrap(), megabyte);
        // SAFETY: the pointer is that of an array that nobody else frees.
        let back = unsafe { Array::from_ptr(clone.into_ptr()) };
        // SAFETY: the pointer is valid as long as `back`.
        let shared = unsafe { Array::share_ptr(back.as_ptr()) }.unwrap();
        drop(back);
        assert_eq!(shared.size(), 1 << 18);
    }
    assert!(resident_pages() - before < 100 << 8, "more than 100 of 300 MB are in use");
    // SAFETY: a null pointer is allowed.
    let error = unsafe { Array::share_ptr(std::ptr::null_mut()) }.unwrap_err();
    assert_eq!(error.message(), "[array_set] src must not be a null array.");
}

#[test]
fn errors() {
    let stream = Stream::default();
    let x = Array::scalar(Complex64 { re: 1.0, im: 0.0 }).unwrap();
    let error = PACKAGE::special::lgamma(&x, &stream).unwrap_err();
    assert!(error.message().starts_with("[lgamma] "), "{error}");
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.clone().into();
    assert_eq!(boxed.to_string(), error.message());
    // Messages are per thread, and a call after an error works.
    let other = thread::spawn(|| {
        let x = Array::from_slice(&[1.0f32], &[1]).unwrap();
        PACKAGE::block_diag(&[&x, &x], &Stream::cpu().unwrap()).unwrap().to_vec::<f32>().unwrap()
    });
    assert_eq!(other.join().unwrap(), [1.0, 0.0, 0.0, 1.0]);
    let x = Array::scalar(1.0f32).unwrap();
    assert_eq!(PACKAGE::special::lgamma(&x, &stream).unwrap().item::<f32>().unwrap(), 0.0);
}

/// Computed arrays move between threads; only the thread of its stream computes an array.
#[test]
fn threads() {
    let cpu = Stream::cpu().unwrap();
    let x = Array::spread(1.0, 2.0, &[1000], Dtype::Float32).unwrap();
    for _ in 0..50 {
        let lazy = PACKAGE::special::lgamma(&x, &cpu).unwrap();
        let clone = lazy.clone();
        let error = thread::spawn(move || clone.eval().unwrap_err()).join().unwrap();
        assert!(error.message().contains("in current thread"), "{error}");
        let expected = lazy.to_vec::<f32>().unwrap();
        let (send, receive) = mpsc::channel();
        for _ in 0..4 {
            let (y, send) = (lazy.clone(), send.clone());
            thread::spawn(move || {
                let z = PACKAGE::special::digamma(&y, &Stream::cpu().unwrap()).unwrap();
                z.eval().unwrap();
                send.send((y, z)).unwrap();
            });
        }
        drop((lazy, send));
        let z = PACKAGE::special::digamma(&PACKAGE::special::lgamma(&x, &cpu).unwrap(), &cpu);
        let z = z.unwrap().to_vec::<f32>().unwrap();
        let arrays: Vec<(Array, Array)> = receive.iter().collect();
        assert_eq!(arrays.len(), 4);
        for (found, more) in arrays {
            assert_eq!(bits(&found.to_vec::<f32>().unwrap()), bits(&expected));
            assert_eq!(bits(&more.to_vec::<f32>().unwrap()), bits(&z));
        }
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}
