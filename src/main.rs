fn main() {
    if let Some(code) = longshore::os::freeze::main_if_guard() {
        std::process::exit(code)
    }
}
