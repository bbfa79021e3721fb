// Package windows is the Windows machine that a node of the lab may be: the simulated one of pkg/hns/hnstest with a body
// (New), which is the network namespace of the process, so that what HNS is told carries packets; and, for tests in
// another process, the orders by which it fails, forgets, or is another hand's, and its report.
package windows
