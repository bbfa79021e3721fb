// Package hnstest is a simulated Windows machine, for tests without Windows.
package hnstest
