# Layers, forward and backward, in float64: what Keras gives for weights, inputs and gradients drawn at random.
# Keras keeps some constants in float32 even then, so options are numbers that float32 holds.
# SPDX-License-Identifier: Apache-2.0
import numpy


def cases(keras):
    """name: (layer, shapes of the inputs, options of the call)."""
    layers = keras.layers
    image = [(2, 6, 7, 3)]
    table = [(4, 5)]
    sequence = [(2, 5, 3)]
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
    }


def record(tf, keras):
    tensors = {}
    for number, (name, (layer, shapes, options)) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(100 + number)
        inputs = [tf.constant(random.uniform(-1.0, 1.0, shape)) for shape in shapes]
        argument = inputs if len(inputs) > 1 else inputs[0]
        layer.build([x.shape for x in inputs] if len(inputs) > 1 else inputs[0].shape)
        for weight in layer.weights:  # none is 0 or 1, and variances are positive
            weight.assign(random.uniform(0.2, 1.0, weight.shape))
        before = [weight.numpy() for weight in layer.weights]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = layer(argument, **options)
            factors = random.uniform(-1.0, 1.0, y.shape)
            target = tf.reduce_sum(y * factors)
        weights = [weight.value for weight in layer.trainable_weights]
        gradients = tape.gradient(target, inputs + weights)
        tensors[f"{name}/y"] = y.numpy()
        tensors[f"{name}/factors"] = factors
        for i, x in enumerate(inputs):
            tensors[f"{name}/x{i}"] = x.numpy()
            tensors[f"{name}/dx{i}"] = gradients[i].numpy()
        for i, weight in enumerate(before):
            tensors[f"{name}/w{i}"] = weight
        for i, weight in enumerate(layer.weights):
            if not weight.trainable:
                tensors[f"{name}/after{i}"] = weight.numpy()
        for i, gradient in enumerate(gradients[len(inputs):]):
            tensors[f"{name}/dw{i}"] = tf.convert_to_tensor(gradient).numpy()
    return tensors
