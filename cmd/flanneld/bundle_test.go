package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flannel/pkg/doctor"
	"flannel/pkg/probe"
)

func unpack(t *testing.T, bundle io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "flannel-bundle/")] = string(text)
	}
}

func unpackFile(t *testing.T, path string) map[string]string {
	t.Helper()
	bundle, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return unpack(t, bytes.NewReader(bundle))
}

// An interrupted doctor neither judges what it did not see nor leaves half a bundle.
func TestInterruptedDoctor(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	args := []string{"--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env"), "doctor", "--json", "--bundle=" + path}
	code, out, problems := flanneldSays(ctx, args...)
	if is := read[failure](t, out); code != exitError || is.Problem == "" || problems == "" {
		t.Errorf("%d %s %s", code, out, problems)
	}
	if err := probe.WriteBundleFile(ctx, (&options{}).bundleOptions(), path, doctor.Snapshot{}, nil); err == nil || exists(path)() {
		t.Errorf("half a bundle, %v", err)
	}
}
