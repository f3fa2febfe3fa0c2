// SPDX-License-Identifier: Apache-2.0
// main.rs - runs an unchanged ONNX model on several devices from Rust, with the crate `ort`.
//
//   ORT_DYLIB_PATH=libonnxruntime.so cargo run -- $PWD/build/libtessera_ep.so model.onnx 2
//
// The path of the library is absolute: ONNX Runtime searches relative ones in its own folder.
// The model has the input "x" of 2 x 64 floats and the output "y". Needs ONNX Runtime 1.24 or
// later.
use ort::{environment::Environment, session::Session, value::Tensor};

fn main() -> ort::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let environment = Environment::current()?;
    let _library = environment.register_ep_library("tessera", &arguments[1])?;
    let devices: Vec<_> = environment
        .devices()
        .filter(|device| device.ep().is_ok_and(|name| name == "TesseraExecutionProvider"))
        .collect();
    // Every option begins with the name of the provider.
    let option = |key: &str, value: &str| (format!("TesseraExecutionProvider.{key}"), value.to_string());
    let options = [option("devices", &arguments[3]), option("strict", "1")];
    let mut session = Session::builder()?
        .with_devices(devices, Some(&options))?
        .commit_from_file(&arguments[2])?;

    let data: Vec<f32> = (0..2 * 64).map(|i| (i % 7) as f32).collect();
    let x = Tensor::from_array(([2usize, 64], data))?;
    let outputs = session.run(ort::inputs!["x" => x])?;
    let (_, y) = outputs["y"].try_extract_tensor::<f32>()?;
    let text: Vec<String> = y.iter().map(|v| v.to_string()).collect();
    println!("{}", text.join(" "));
    Ok(())
}
