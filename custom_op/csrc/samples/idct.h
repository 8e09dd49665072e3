// The inverse discrete cosine transform of blocks, bit-identical to libjpeg-turbo's "islow" method.
#pragma once

#include <cstdint>

namespace custom_op {

// Dequantizes and transforms blocks that lie next to each other, from left to right. `blocks` and
// `quantization` are in natural order, aligned to 16 bytes. Writes 8 rows of 8 * count samples to
// `out`, and may overwrite 8 more samples of each row. Returns false for coefficients so large that
// the implementations of libjpeg-turbo differ; only damaged data has them.
bool inverse_dct(const int16_t* const* blocks, int64_t count, const uint16_t* quantization,
                 uint8_t* out, int64_t stride);

}  // namespace custom_op
