//! Times calls in Rust, as benchmarks/languages.cpp does in C++ and C: benchmarks/languages.py.

use std::time::Instant;

use mlxops::examples::{AxpbyOptions, axpby};
use mlxops::{Array, Stream};

fn main() -> mlxops::Result<()> {
    let given: Vec<usize> = std::env::args().skip(1).map(|text| text.parse().unwrap()).collect();
    let (x, y, stream) = (Array::scalar(1f32)?, Array::scalar(2f32)?, Stream::default());
    for i in 0..=given[0] {
        let start = Instant::now();
        for _ in 0..given[1] {
            axpby(&x, &y, AxpbyOptions { alpha: 2.0, beta: 3.0 }, &stream)?;
        }
        if i > 0 {
            println!("{}", start.elapsed().as_secs_f64() / given[1] as f64); // after a warm-up
        }
    }
    Ok(())
}
