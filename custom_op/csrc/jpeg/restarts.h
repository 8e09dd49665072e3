// Finds the restart segments of a scan.
#pragma once

#include <vector>

#include "jpeg/header.h"

namespace custom_op {

struct Range {
  size_t begin, end;
};

// Lists the entropy-coded bytes of every restart segment, without the markers. A file without a
// restart interval is one segment. Returns false if the markers are not exactly those that the
// interval requires, in order: then none of them can be trusted.
bool index_restarts(Bytes jpeg, const Header& header, std::vector<Range>& segments);

}  // namespace custom_op
