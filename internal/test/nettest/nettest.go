// Package nettest helps to test clients against a real server: it runs the
// process of the server, which can be killed and paused and never outlives the
// test, chooses an address that no other process takes, and provides a proxy
// that can drop or delay data.
package nettest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Address returns a free loopback address and port. It stays free while the
// server of the test is down, because the address is random and the port is
// below the range that the kernel assigns to connections.
func Address(t testing.TB) string {
	t.Helper()
	var err error
	for range 20 {
		host := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
		var l net.Listener
		l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(20_000+rand.IntN(10_000))))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatalf("no free port: %v", err)
	return ""
}

// Root returns the directory of this repository: that of the main go.mod, at or
// above the working directory.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		mod, _ := os.ReadFile(filepath.Join(dir, "go.mod"))
		if strings.HasPrefix(string(mod), "module flannel\n") {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("the working directory is not in the repository")
		}
	}
}

// Tool returns the path of a program that make has built for tests, such as
// etcd.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(Root(t), "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("bin/%s is missing: run make build tools kube wine bin/image/start bin/prometheus/unpacked", name)
	}
	return path
}
