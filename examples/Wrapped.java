// SPDX-License-Identifier: Apache-2.0
// Wrapped.java - runs a sharded model from Java, with ONNX Runtime's package (Maven Central) and libtessera_ops.so.
//
//   tessera partition decoder.onnx --state 'past_key_values.*=present.*' --layout wrapped -o wrapped
//   java -cp onnxruntime.jar examples/Wrapped.java wrapped/model.onnx libtessera_ops.so 2 16 1,7,11
//
// The caches stay with the ranks: what the loop feeds back are handles, tensors without elements. Two sessions of one process
// generate in turns, each with caches of its own; then a handle of the past is given on purpose, to show how an error looks.
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxTensorLike;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

public class Wrapped {
    static final OrtEnvironment environment = OrtEnvironment.getEnvironment();

    // One text that grows: what the next run is given, and the tokens so far.
    static final class Text {
        final OrtSession session;
        final Map<String, OnnxTensorLike> feeds = new HashMap<>();
        final List<Long> tokens = new ArrayList<>();
        int total;

        Text(OrtSession session, long heads, long headSize, long[] prompt) throws OrtException {
            this.session = session;
            for (String name : session.getInputNames())
                if (name.startsWith("past_key_values"))
                    feeds.put(name, OnnxTensor.createTensor(environment, FloatBuffer.allocate(0), new long[] {1, heads, 0, headSize}));
            give(prompt);
        }

        void give(long[] ids) throws OrtException {
            long[] mask = new long[total += ids.length];
            Arrays.fill(mask, 1);
            feeds.put("input_ids", OnnxTensor.createTensor(environment, new long[][] {ids}));
            feeds.put("attention_mask", OnnxTensor.createTensor(environment, new long[][] {mask}));
        }

        void step() throws OrtException {
            OrtSession.Result result = session.run(feeds);
            float[][][] logits = (float[][][]) result.get("logits").get().getValue();
            float[] last = logits[0][logits[0].length - 1];
            int best = 0;
            for (int i = 1; i < last.length; i++)
                if (last[i] > last[best])
                    best = i;
            for (String name : session.getInputNames())
                if (name.startsWith("past_key_values"))
                    feeds.put(name, (OnnxTensor) result.get(name.replace("past_key_values", "present")).get());
            tokens.add((long) best);
            give(new long[] {best});
        }
    }

    public static void main(String[] words) throws OrtException {
        long[] prompt = Arrays.stream(words[4].split(",")).mapToLong(Long::parseLong).toArray();
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        options.registerCustomOpLibrary(words[1]);
        try (OrtSession first = environment.createSession(words[0], options);
             OrtSession second = environment.createSession(words[0], options)) {
            long heads = Long.parseLong(words[2]), headSize = Long.parseLong(words[3]);
            Text one = new Text(first, heads, headSize, prompt), other = new Text(second, heads, headSize, prompt);
            for (int i = 0; i < 8; i++) {
                one.step();
                if (i % 2 == 0)
                    other.step();
            }
            System.out.println("one " + one.tokens);
            System.out.println("other " + other.tokens);
            Map<String, OnnxTensorLike> old = new HashMap<>(one.feeds);
            one.step();
            one.feeds.putAll(old);
            try {
                one.step();
            } catch (OrtException error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
