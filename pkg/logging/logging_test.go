package logging

import (
	"bytes"
	"sync"
	"testing"

	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

// TestLibrariesLog checks that libraries write to the latest log. The race detector sees if a new log writes what their
// goroutines read.
func TestLibrariesLog(t *testing.T) {
	var first, second bytes.Buffer
	if _, _, err := New(Options{Stderr: &first}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			klog.Info("beside")
			grpclog.Error("never seen")
		}
	})
	if _, _, err := New(Options{Stderr: &second}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	klog.Info("after")
	if bytes.Contains(first.Bytes(), []byte("msg=after")) || !bytes.Contains(second.Bytes(), []byte("msg=after")) {
		t.Errorf("the former log has:\n%s\nthe latest one:\n%s", first.String(), second.String())
	}
	if bytes.Contains(append(first.Bytes(), second.Bytes()...), []byte("never seen")) {
		t.Error("gRPC wrote to the log")
	}
}
