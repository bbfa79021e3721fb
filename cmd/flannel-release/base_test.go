package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
)

// The digest in the Dockerfile becomes that of the registry's image, and stays as it is when the registry has none.
func TestRenewBase(t *testing.T) {
	server := httptest.NewTLSServer(registry.New())
	defer server.Close()
	client := server.Client()
	host := strings.TrimPrefix(server.URL, "https://")
	index, err := empty.Index.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/v2/windows/base/manifests/v1", strings.NewReader(string(index)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/vnd.oci.image.index.v1+json")
	response, err := client.Do(request)
	if err != nil || response.StatusCode != http.StatusCreated {
		t.Fatal(response, err)
	}
	response.Body.Close()
	want, err := empty.Index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	dockerfile := filepath.Join(t.TempDir(), "Dockerfile")
	for line, pinned := range map[string]string{
		"/windows/base:v1": "/windows/base:v1@" + want.String(),
		"/windows/base:v1@sha256:" + strings.Repeat("0", 64): "/windows/base:v1@" + want.String(),
		"/windows/base:v2":    "",
		"/windows/base:v1 # ": "",
	} {
		before := "# ours\nARG HOST_PROCESS=" + host + line + "\nFROM ${HOST_PROCESS}\n"
		if err := os.WriteFile(dockerfile, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		err := renewBase(t.Context(), client, dockerfile)
		after, readErr := os.ReadFile(dockerfile)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if pinned == "" {
			if err == nil || string(after) != before {
				t.Errorf("%s: %v\n%s", line, err, after)
			}
		} else if err != nil || string(after) != "# ours\nARG HOST_PROCESS="+host+pinned+"\nFROM ${HOST_PROCESS}\n" {
			t.Errorf("%s: %v\n%s", line, err, after)
		}
	}
	if text, err := os.ReadFile(filepath.Join("..", "..", "dist", "windows", "Dockerfile")); err != nil || !base.Match(text) {
		t.Errorf("the Dockerfile for Windows has no such base image: %v", err)
	}
}
