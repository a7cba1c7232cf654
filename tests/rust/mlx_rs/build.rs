fn main() {
    for folder in std::env::var("MLX_FOLDERS").unwrap().split(':') {
        println!("cargo::rustc-link-search=native={folder}");
    }
    println!("cargo::rustc-link-lib=dylib=mlxops");
    println!("cargo::rustc-link-lib=dylib=mlx");
}
