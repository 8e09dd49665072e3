// The constants of the inverse DCT.
#pragma once

namespace custom_op {

// Note [The islow transform]
// The two-dimensional transform is a one-dimensional one over the columns, then one over the rows,
// with the algorithm of Loeffler, Ligtenberg and Moschytz (ICASSP 1989): 11 multiplications for 8
// values. Factors have 13 fractional bits; the column pass keeps 2 fractional bits of its results.
// Where the results are rounded is that of the Independent JPEG Group's jidctint.c; pixels are
// identical only if every rounding is.
constexpr int kFactorBits = 13, kColumnBits = 2;
constexpr int kColumnShift = kFactorBits - kColumnBits;
constexpr int kRowShift = kFactorBits + kColumnBits + 3;

// Factors as the paper names them, times 1 << kFactorBits.
constexpr int k0_298 = 2446, k0_390 = 3196, k0_541 = 4433, k0_765 = 6270, k0_899 = 7373,
              k1_175 = 9633, k1_501 = 12299, k1_847 = 15137, k1_961 = 16069, k2_053 = 16819,
              k2_562 = 20995, k3_072 = 25172;

// Real images have dequantized coefficients of at most 2048 or so.
constexpr int kLargest = 8191;

}  // namespace custom_op
