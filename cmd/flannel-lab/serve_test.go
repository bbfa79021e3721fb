package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A client that sends no request, or does not read the reply, does not keep others from theirs.
func TestStuckClients(t *testing.T) {
	t.Parallel()
	for name, request := range map[string][]string{"no request": nil, "reply not read": {"status"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := background{what: "lab", socket: filepath.Join(t.TempDir(), "socket")}
			l, err := net.Listen("unix", b.socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			const large = 16 << 20 // bytes; a socket does not hold as many
			do := handler(func(context.Context, []string) (string, []*os.File, error) {
				return strings.Repeat("x", large), nil, nil
			})
			go do.serve(t.Context(), l)
			stuck, err := net.Dial("unix", b.socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { stuck.Close() })
			if request != nil {
				if err := json.NewEncoder(stuck).Encode(request); err != nil {
					t.Fatal(err)
				}
			}
			if r, _, err := b.call([]string{"status"}); err != nil || len(r.Text) != large {
				t.Errorf("the next client has a reply of %d bytes, %v", len(r.Text), err)
			}
		})
	}
}
