# Two networks trained for a few steps, in float64: a transformer with masks of every kind, and one of depthwise and
# separable convolutions.
# SPDX-License-Identifier: Apache-2.0
import numpy

STEPS = 8
FIRST_ROWS = 6  # batches of 6 and of 4 rows take turns


class Drawing:
    """Applies layers and remembers them in this order, which is that of tutti's variables."""

    def __init__(self):
        self.layers = []

    def __call__(self, layer, *arguments, **options):
        self.layers.append(layer)
        return layer(*arguments, **options)

    def weights(self):
        return [weight for layer in self.layers for weight in layer.weights]


def transformer(keras, draw):
    layers = keras.layers

    def feed_forward(x):
        y = draw(layers.LayerNormalization(), x)
        y = draw(layers.Dense(6, activation="silu"), y)
        return draw(layers.Add(), [x, draw(layers.Dense(8), y)])

    source, target, visible = keras.Input((6,), dtype="int64"), keras.Input((5,), dtype="int64"), keras.Input((5, 5))
    x = draw(layers.Embedding(7, 8, mask_zero=True), source)
    y = draw(layers.LayerNormalization(), x)
    x = feed_forward(draw(layers.Add(), [x, draw(layers.MultiHeadAttention(2, 4), y, y)]))
    encoded = draw(layers.LayerNormalization(), x)

    x = draw(layers.Embedding(6, 8, mask_zero=True), target)
    y = draw(layers.LayerNormalization(), x)
    y = draw(layers.MultiHeadAttention(2, 4), y, y, attention_mask=visible, use_causal_mask=True)
    x = draw(layers.Add(), [x, y])
    y = draw(layers.LayerNormalization(), x)
    x = feed_forward(draw(layers.Add(), [x, draw(layers.MultiHeadAttention(2, 4, value_dim=3), y, encoded)]))
    x = draw(layers.GlobalAveragePooling1D(), draw(layers.LayerNormalization(), x))
    return keras.Model([source, target, visible], draw(layers.Dense(4), x))


def transformer_data(random):
    rows = FIRST_ROWS + 4
    source, target = random.randint(0, 7, (rows, 6)), random.randint(0, 6, (rows, 5))  # 0 is a gap
    source[:, 1], target[:, 0] = 1, 1  # no row is all gaps
    visible = numpy.maximum(random.randint(0, 2, (rows, 5, 5)), numpy.eye(5)).astype("float64")
    return [source, target, visible]


def transformer_optimizer(keras):
    rate = keras.optimizers.schedules.CosineDecay(
        numpy.float64(1 / 64), 6, alpha=1 / 8, warmup_target=1 / 16, warmup_steps=3)
    optimizer = keras.optimizers.AdamW(
        rate, weight_decay=1 / 8, beta_1=7 / 8, beta_2=31 / 32, epsilon=1 / 1024, global_clipnorm=1 / 2)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def depthwise(keras, draw):
    layers = keras.layers
    image = keras.Input((13, 11, 2))
    x = draw(layers.Conv2D(4, 3, strides=2, padding="same", activation="relu6"), image)
    y = draw(layers.SeparableConv2D(4, 3, padding="same", use_bias=False), x)
    y = draw(layers.ReLU(max_value=6.0), draw(layers.BatchNormalization(momentum=0.75, scale=False), y))
    y = draw(layers.DepthwiseConv2D(3, padding="same", dilation_rate=2, use_bias=False), y)
    y = draw(layers.BatchNormalization(momentum=0.75, center=False), y)
    x = draw(layers.Activation("relu6"), draw(layers.Add(), [x, y]))
    x = draw(layers.DepthwiseConv2D((3, 2), strides=2, padding="same", depth_multiplier=2, use_bias=False), x)
    x = draw(layers.BatchNormalization(momentum=0.75, center=False, scale=False), x)
    x = draw(layers.AveragePooling2D(3, strides=2, padding="same"), draw(layers.Activation("relu6"), x))
    return keras.Model(image, draw(layers.Dense(4), draw(layers.Flatten(), x)))


def depthwise_data(random):
    images = random.uniform(-1.0, 1.0, (FIRST_ROWS + 4, 13, 11, 2))
    images[:, :4] = images[:, :, :3] = 0.0  # black borders and a bias of 0: exact zeros in front of relu6
    return [images]


def depthwise_optimizer(keras):
    return keras.optimizers.RMSprop(1 / 64, rho=7 / 8, momentum=3 / 4, epsilon=1 / 1024, centered=True)


NETWORKS = {
    "transformer": (transformer, transformer_data, transformer_optimizer, 31),
    "depthwise": (depthwise, depthwise_data, depthwise_optimizer, 32),
}


def record(tf, keras):
    tensors = {}
    for name, (make_model, make_data, make_optimizer, seed) in NETWORKS.items():
        random = numpy.random.RandomState(seed)
        inputs, labels = make_data(random), random.randint(0, 4, FIRST_ROWS + 4)
        draw = Drawing()
        model, optimizer = make_model(keras, draw), make_optimizer(keras)
        weights, trainable = draw.weights(), [w for w in draw.weights() if w.trainable]
        for weight in trainable:
            if len(weight.shape) > 1:
                weight.assign(random.uniform(-0.5, 0.5, weight.shape))
        for i, value in enumerate(inputs):
            tensors[f"{name}/x{i}"] = value
        tensors[f"{name}/labels"] = labels
        for i, weight in enumerate(weights):
            tensors[f"{name}/initial{i}"] = weight.numpy()
        losses = []
        for step in range(STEPS):
            rows = slice(0, FIRST_ROWS) if step % 2 == 0 else slice(FIRST_ROWS, None)
            with tf.GradientTape() as tape:
                logits = model([tf.constant(value[rows]) for value in inputs], training=True)
                each = keras.losses.sparse_categorical_crossentropy(labels[rows], logits, from_logits=True)
                loss = tf.reduce_mean(each)
            # Dense, for Keras squares the rows of repeated ids one by one (docs/deviations.md).
            gradients = [tf.convert_to_tensor(each)
                         for each in tape.gradient(loss, [weight.value for weight in trainable])]
            optimizer.apply(gradients, trainable)
            losses.append(loss.numpy())
        tensors[f"{name}/losses"] = numpy.array(losses)
        for i, weight in enumerate(weights):
            tensors[f"{name}/final{i}"] = weight.numpy()
    return tensors
