//go:build !linux

package hnstest

import "errors"

// NewKernel needs network namespaces.
func NewKernel() (*Machine, error) { return nil, errors.ErrUnsupported }
