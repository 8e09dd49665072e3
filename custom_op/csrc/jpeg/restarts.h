// Finds where the restart segments of a scan begin.
#pragma once

#include <vector>

#include "jpeg/header.h"

namespace custom_op {

struct Range {
  size_t begin, end;
};

// The entropy-coded bytes of every restart segment, markers excluded; the whole scan is one segment
// when the file has no restart interval. False when the markers are not exactly those that the
// interval asks for, in order: then none of them can be trusted.
bool index_restarts(Bytes jpeg, const Header& header, std::vector<Range>& segments);

}  // namespace custom_op
