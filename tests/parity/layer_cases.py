# Layers, forward and backward, in float64: what Keras gives for weights, inputs and gradients drawn at random.
# Keras keeps some constants in float32 even then, so options are numbers that float32 holds.
# SPDX-License-Identifier: Apache-2.0
import numpy


def masked(keras, *stack):
    return keras.Sequential([keras.Input((5, 3)), keras.layers.Masking(), *stack])


def masked_attention(keras):
    x = keras.Input((5, 3))
    y = keras.layers.Masking()(x)
    y = keras.layers.MultiHeadAttention(2, 4)(y, y, use_causal_mask=True)
    return keras.Model(x, keras.layers.GlobalAveragePooling1D()(y))


def masked_sum(keras):
    x = keras.Input((5, 3))
    y = keras.layers.Masking()(x)
    y = keras.layers.Concatenate()([y, keras.layers.Add()([y, keras.layers.Dense(3)(y)])])
    return keras.Model(x, keras.layers.LSTM(2)(y))


def gapped_embedding(keras):
    layers = keras.layers
    return keras.Sequential([keras.Input((5,)), layers.Embedding(6, 3, mask_zero=True), layers.GRU(2)])


def local_response_normalization(x):
    import tensorflow as tf
    y = tf.nn.local_response_normalization(tf.cast(x, "float32"), depth_radius=1, bias=1.5, alpha=0.5, beta=0.75)
    return tf.cast(y, x.dtype)


def rotated(x, max_wavelength):
    """[batch, steps, heads, length]: features i and i + length / 2 as a complex number, turned by its step."""
    import tensorflow as tf
    pairs = x.shape[-1] // 2
    angles = numpy.arange(x.shape[1])[:, None] * max_wavelength ** (-numpy.arange(pairs) / pairs)
    turned = tf.complex(x[..., :pairs], x[..., pairs:]) * numpy.exp(1j * angles)[None, :, None, :]
    return tf.concat([tf.math.real(turned), tf.math.imag(turned)], -1)


def causal_rotary_attention(keras, x, max_wavelength):
    """4 heads of 6 over 2 keys and values, of EinsumDense layers; Keras has no rotary positions."""
    import tensorflow as tf

    steps, features = x.shape[1:]

    def projected(heads):
        return keras.layers.EinsumDense("bsf,fhd->bshd", (steps, heads, 6), bias_axes="hd")(x)

    def attended(projections):
        query, key = (rotated(each, max_wavelength) for each in projections[:2])
        key, value = (tf.repeat(each, 2, 2) for each in (key, projections[2]))
        scores = tf.einsum("bqhd,bkhd->bhqk", query, key) / 6.0**0.5
        seen = numpy.tril(numpy.ones(scores.shape[-2:]))
        return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores - 1e9 * (1.0 - seen)), value)

    heads = keras.layers.Lambda(attended, (steps, 4, 6))([projected(4), projected(2), projected(2)])
    return keras.layers.EinsumDense("bshd,hdf->bsf", (steps, features), bias_axes="f")(heads)


def swiglu(keras, x, hidden, output, use_bias):
    layers = keras.layers
    gate = layers.Dense(hidden, activation="silu", use_bias=use_bias)(x)
    up = layers.Dense(hidden, use_bias=use_bias)(x)
    return layers.Dense(output, use_bias=use_bias)(layers.Multiply()([gate, up]))


def rotary_attention(keras):
    x = keras.Input((5, 3))
    return keras.Model(x, causal_rotary_attention(keras, x, 30.0))


def gated_feed_forward(keras):
    x = keras.Input((5, 3))
    return keras.Model(x, swiglu(keras, x, 4, 2, False))


def transformer_block(keras):
    layers = keras.layers
    x = keras.Input((5, 3))
    y = layers.Add()([x, causal_rotary_attention(keras, layers.RMSNormalization(epsilon=2.0**-10)(x), 10000.0)])
    return keras.Model(x, layers.Add()([y, swiglu(keras, layers.RMSNormalization(epsilon=2.0**-10)(y), 4, 3, True)]))


def cases(keras):
    """name: (layer, shapes of the inputs, options of the call)."""
    layers = keras.layers
    image = [(2, 6, 7, 3)]
    table = [(4, 5)]
    sequence = [(2, 5, 3)]
    gaps = [(3, 5, 3)]  # with steps of zeros, see record()
    training = {"training": True}
    return {
        "dense": (layers.Dense(3), table, {}),
        "dense_relu": (layers.Dense(3, activation="relu"), table, {}),
        "dense_no_bias_tanh": (layers.Dense(3, activation="tanh", use_bias=False), table, {}),
        "dense_rank_3": (layers.Dense(4), sequence, {}),
        "conv2d_valid": (layers.Conv2D(4, 3), image, {}),
        "conv2d_same_stride_2": (layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"), image, {}),
        "conv2d_kernel_2x3": (layers.Conv2D(2, (2, 3), use_bias=False), image, {}),
        "max_pooling2d": (layers.MaxPooling2D(2), image, {}),
        "max_pooling2d_same": (layers.MaxPooling2D(3, strides=2, padding="same"), image, {}),
        "average_pooling2d": (layers.AveragePooling2D(2), image, {}),
        "average_pooling2d_same": (layers.AveragePooling2D(3, strides=2, padding="same"), image, {}),
        "global_average_pooling2d": (layers.GlobalAveragePooling2D(), image, {}),
        "global_max_pooling2d": (layers.GlobalMaxPooling2D(), image, {}),
        "batch_normalization_training": (layers.BatchNormalization(momentum=0.9), image, training),
        "batch_normalization_inference": (layers.BatchNormalization(), image, {"training": False}),
        "batch_normalization_of_rows": (layers.BatchNormalization(epsilon=1e-5), table, training),
        "flatten": (layers.Flatten(), image, {}),
        "reshape": (layers.Reshape((-1, 3)), image, {}),
        "rescaling": (layers.Rescaling(1 / 256, offset=-0.5), image, {}),
        "relu": (layers.Activation("relu"), table, {}),
        "sigmoid": (layers.Activation("sigmoid"), table, {}),
        "tanh": (layers.Activation("tanh"), table, {}),
        "elu": (layers.Activation("elu"), table, {}),
        "gelu": (layers.Activation("gelu"), table, {}),
        "softmax": (layers.Activation("softmax"), table, {}),
        "leaky_relu": (layers.LeakyReLU(negative_slope=0.25), table, {}),
        "prelu": (layers.PReLU(), table, {}),
        "elu_alpha": (layers.ELU(alpha=0.5), table, {}),
        "leaky_relu_steep": (layers.LeakyReLU(negative_slope=1.5), table, {}),
        "relu_options": (layers.ReLU(max_value=0.5, negative_slope=0.25, threshold=0.125), table, {}),
        "conv2d_dilated": (layers.Conv2D(4, 3, dilation_rate=2), image, {}),
        "conv2d_groups": (layers.Conv2D(6, 2, groups=3, activation="tanh"), image, {}),
        "depthwise_conv2d": (layers.DepthwiseConv2D(3, depth_multiplier=2), image, {}),
        "depthwise_conv2d_same": (layers.DepthwiseConv2D(2, strides=2, padding="same"), image, {}),
        "separable_conv2d": (layers.SeparableConv2D(4, 3, padding="same", depth_multiplier=2), image, {}),
        "conv2d_transpose": (layers.Conv2DTranspose(4, 3, strides=2), image, {}),
        "conv2d_transpose_same": (layers.Conv2DTranspose(2, 3, strides=2, padding="same"), image, {}),
        "conv1d": (layers.Conv1D(4, 2, strides=2), sequence, {}),
        "conv1d_causal": (layers.Conv1D(4, 3, padding="causal", dilation_rate=2), sequence, {}),
        "max_pooling1d": (layers.MaxPooling1D(2), sequence, {}),
        "average_pooling1d": (layers.AveragePooling1D(2), sequence, {}),
        "zero_padding2d": (layers.ZeroPadding2D(((1, 2), (0, 3))), image, {}),
        "cropping2d": (layers.Cropping2D(((1, 2), (0, 3))), image, {}),
        "up_sampling2d": (layers.UpSampling2D((2, 3)), image, {}),
        "up_sampling2d_bilinear": (layers.UpSampling2D(2, interpolation="bilinear"), image, {}),
        "permute": (layers.Permute((3, 1, 2)), image, {}),
        "repeat_vector": (layers.RepeatVector(3), table, {}),
        "layer_normalization": (layers.LayerNormalization(), sequence, {}),
        "layer_normalization_of_two_axes": (layers.LayerNormalization(axis=[1, 2], epsilon=2.0**-10), sequence, {}),
        "group_normalization": (layers.GroupNormalization(groups=3), image, {}),
        "instance_normalization": (layers.GroupNormalization(groups=1), image, {}),
        "unit_normalization": (layers.UnitNormalization(), table, {}),
        "simple_rnn": (layers.SimpleRNN(4), sequence, {}),
        "simple_rnn_sequences": (layers.SimpleRNN(4, return_sequences=True, go_backwards=True), sequence, {}),
        "lstm": (layers.LSTM(4), sequence, {}),
        "lstm_sequences": (layers.LSTM(3, return_sequences=True), sequence, {}),
        "gru": (layers.GRU(4), sequence, {}),
        "gru_reset_before": (layers.GRU(4, reset_after=False, return_sequences=True), sequence, {}),
        "bidirectional_lstm": (layers.Bidirectional(layers.LSTM(3, return_sequences=True)), sequence, {}),
        "time_distributed_dense": (layers.TimeDistributed(layers.Dense(4)), sequence, {}),
        "multi_head_attention": (layers.MultiHeadAttention(2, 4), sequence * 2, {}),
        "multi_head_attention_causal": (layers.MultiHeadAttention(2, 4, value_dim=3), sequence * 2,
                                        {"use_causal_mask": True}),
        "add": (layers.Add(), table * 3, {}),
        "subtract": (layers.Subtract(), table * 2, {}),
        "multiply": (layers.Multiply(), table * 3, {}),
        "average": (layers.Average(), table * 3, {}),
        "maximum": (layers.Maximum(), table * 3, {}),
        "minimum": (layers.Minimum(), table * 3, {}),
        "concatenate": (layers.Concatenate(), [(4, 5), (4, 2)], {}),
        "concatenate_axis_1": (layers.Concatenate(axis=1), [(2, 5, 3), (2, 4, 3)], {}),
        "dot": (layers.Dot(axes=1), table * 2, {}),
        "global_average_pooling1d": (layers.GlobalAveragePooling1D(), sequence, {}),
        "global_max_pooling1d": (layers.GlobalMaxPooling1D(), sequence, {}),
        "masked_lstm": (masked(keras, layers.LSTM(4)), gaps, {}),
        "masked_lstm_backwards": (masked(keras, layers.LSTM(3, return_sequences=True, go_backwards=True)), gaps, {}),
        "masked_gru": (masked(keras, layers.GRU(4, return_sequences=True), layers.SimpleRNN(3)), gaps, {}),
        "masked_bidirectional": (masked(keras, layers.Bidirectional(layers.GRU(3, return_sequences=True)),
                                        layers.LSTM(2)), gaps, {}),
        "masked_average": (masked(keras, layers.Dense(4, activation="tanh"), layers.LayerNormalization(),
                                  layers.TimeDistributed(layers.Dense(2)),
                                  layers.GlobalAveragePooling1D()), gaps, {}),
        "masked_attention": (masked_attention(keras), gaps, {}),
        "masked_sum": (masked_sum(keras), gaps, {}),
        "embedding": (layers.Embedding(6, 3), [(3, 5)], {}),
        "embedding_with_gaps": (gapped_embedding(keras), [(4, 5)], {}),
        "local_response_normalization": (layers.Lambda(local_response_normalization), image, {}),
        "zero_padding1d": (layers.ZeroPadding1D((1, 2)), sequence, {}),
        "lstm_from_states": (layers.LSTM(4), sequence + [(2, 4)] * 2, {}),
        "bidirectional_sum": (layers.Bidirectional(layers.SimpleRNN(3), merge_mode="sum"), sequence, {}),
        "prelu_shared": (layers.PReLU(shared_axes=[1, 2]), image, {}),
        "batch_normalization_plain": (layers.BatchNormalization(center=False, scale=False), table, training),
        "dot_normalized": (layers.Dot(axes=(2, 1), normalize=True), [(2, 3, 4), (2, 4, 5)], {}),
        # Read as they are, by nothing that knows of masks.
        "masked_bidirectional_sequences": (masked(
            keras, layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.Bidirectional(layers.GRU(2, return_sequences=True), merge_mode="ave")), gaps, {}),
        "masked_bidirectional_last": (masked(
            keras, layers.Bidirectional(layers.SimpleRNN(3, return_sequences=True), merge_mode="mul"),
            layers.Bidirectional(layers.LSTM(2))), gaps, {}),
        "masked_zero_outputs": (masked(keras, layers.LSTM(
            3, return_sequences=True, zero_output_for_mask=True)), gaps, {}),
        "masked_zero_output_last": (masked(keras, layers.GRU(3, zero_output_for_mask=True)), gaps, {}),
        # Without dropout Keras takes another way, on which hidden values show (docs/deviations.md).
        "multi_head_attention_of_nothing": (layers.MultiHeadAttention(2, 4, dropout=0.5),
                                            [(2, 5, 3), (2, 4, 3), (2, 5, 4)], {}),
        "rms_normalization": (layers.RMSNormalization(epsilon=2.0**-10), sequence, {}),
        "rms_normalization_of_two_axes": (layers.RMSNormalization(axis=[1, 2], epsilon=2.0**-4), sequence, {}),
        "multi_head_attention_grouped": (layers.GroupQueryAttention(4, 6, 2), [(2, 5, 3), (2, 4, 3)], {}),
        "multi_head_attention_of_one_key": (layers.GroupQueryAttention(4, 3, 1), sequence * 2,
                                            {"use_causal_mask": True}),
        "rotary_attention": (rotary_attention(keras), sequence, {}),
        "swiglu": (gated_feed_forward(keras), sequence, {}),
        "transformer_block": (transformer_block(keras), sequence, {}),
    }


def with_gaps(x):
    """The first row is whole, the second ends early, the third has gaps at its beginning and inside."""
    x[1, 3:] = x[2, 0] = x[2, 2] = 0.0
    return x


def record(tf, keras):
    tensors = {}
    for number, (name, (layer, shapes, options)) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(100 + number)
        inputs = [tf.constant(random.uniform(-1.0, 1.0, shape)) for shape in shapes]
        if name.startswith("masked"):
            inputs = [tf.constant(with_gaps(inputs[0].numpy()))]
        if name.startswith("embedding"):
            inputs = [tf.constant(random.randint(0, 6, shape)) for shape in shapes]
        if name == "multi_head_attention_of_nothing":
            visible = (inputs[2].numpy() > 0.0).astype("int64")
            visible[0, 1] = visible[1, 4] = 0
            inputs[2] = tf.constant(visible)
        takes_a_list = len(inputs) > 1 and not name.startswith("multi_head_attention")
        arguments = [inputs] if takes_a_list else inputs
        if name == "lstm_from_states":
            arguments, options = inputs[:1], {"initial_state": inputs[1:]}
        if name == "multi_head_attention_of_nothing":
            arguments, options = inputs[:2], {"attention_mask": inputs[2]}
        layer(*arguments)  # makes the weights
        for weight in layer.weights:
            low = 0.2 if "variance" in weight.name else -0.7
            weight.assign(random.uniform(low, 0.9, weight.shape))
        before = [weight.numpy() for weight in layer.weights]
        with tf.GradientTape() as tape:
            tape.watch([x for x in inputs if x.dtype.is_floating])
            y = layer(*arguments, **options)
            factors = random.uniform(-1.0, 1.0, y.shape)
            target = tf.reduce_sum(y * factors)
        weights = [weight.value for weight in layer.trainable_weights]
        gradients = tape.gradient(target, inputs + weights)
        tensors[f"{name}/y"] = y.numpy()
        tensors[f"{name}/factors"] = factors
        for i, x in enumerate(inputs):
            tensors[f"{name}/x{i}"] = x.numpy()
            if gradients[i] is not None:
                tensors[f"{name}/dx{i}"] = gradients[i].numpy()
        for i, weight in enumerate(before):
            tensors[f"{name}/w{i}"] = weight
        for i, weight in enumerate(layer.weights):
            if not weight.trainable:
                tensors[f"{name}/after{i}"] = weight.numpy()
        for i, gradient in enumerate(gradients[len(inputs):]):
            tensors[f"{name}/dw{i}"] = tf.convert_to_tensor(gradient).numpy()
    return tensors
