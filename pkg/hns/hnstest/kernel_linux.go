package hnstest

// NewKernel TODO
func NewKernel() (*Machine, error) { return New(), nil }
