// SPDX-License-Identifier: Apache-2.0
// Provider.java - runs an unchanged ONNX model on several devices from Java, with ONNX Runtime's
// package of Maven Central (com.microsoft.onnxruntime:onnxruntime, 1.24 or later).
//
//   java -cp onnxruntime.jar examples/provider/Provider.java $PWD/build/libtessera_ep.so model.onnx 2
//
// The path of the library is absolute: ONNX Runtime searches relative ones in its own folder.
// The model has one input of 2 x 64 floats. Prints its first output.
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtEpDevice;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

public class Provider {
    static OrtSession.SessionOptions useTessera(OrtEnvironment environment, String devices) throws OrtException {
        List<OrtEpDevice> tessera = new ArrayList<>();
        for (OrtEpDevice device : environment.getEpDevices())
            if (device.getEpName().equals("TesseraExecutionProvider"))
                tessera.add(device);
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        options.addExecutionProvider(tessera, Map.of("devices", devices, "strict", "1"));
        return options;
    }

    public static void main(String[] arguments) throws OrtException {
        OrtEnvironment environment = OrtEnvironment.getEnvironment();
        environment.registerExecutionProviderLibrary("tessera", arguments[0]);
        float[] data = new float[2 * 64];
        for (int i = 0; i < data.length; i++)
            data[i] = i % 7;
        try (OrtSession session = environment.createSession(arguments[1], useTessera(environment, arguments[2]));
             OnnxTensor x = OnnxTensor.createTensor(environment, FloatBuffer.wrap(data), new long[] {2, 64});
             OrtSession.Result result = session.run(Map.of(session.getInputNames().iterator().next(), x))) {
            FloatBuffer y = ((OnnxTensor) result.get(0)).getFloatBuffer();
            StringBuilder text = new StringBuilder();
            while (y.hasRemaining())
                text.append(text.length() > 0 ? " " : "").append(y.get());
            System.out.println(text);
        }
    }
}
