package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"flannel/internal/test/logtest"
	"flannel/subnet"
)

// On Linux, only a missing subnet file leaves the networks open. To delete a malformed one is no advice for a named
// instance.
func TestLeftBySubnetFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		path      string
		want      []string // networks, then subnets
		err       string   // what the error, names besides the path; on Windows it is a warning. "": there is none
		malformed bool
	}{
		{filepath.Join(dir, "missing"), nil, "", false},
		{file("dual", "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_FORMER_SUBNET=10.5.2.0/25\n"),
			[]string{"10.5.0.0/16", "fd00::/48", "10.5.1.0/24", "10.5.2.0/25"}, "", false},
		{file("malformed", "FLANNEL_NETWORK=10.5\nFLANNEL_SUBNET=10.5.1.1/24\n"), nil, `FLANNEL_NETWORK="10.5"`, true},
		{file("empty", ""), nil, "FLANNEL_SUBNET", true},
		{file("no-network", "FLANNEL_SUBNET=10.5.1.1/24\n"), nil, "FLANNEL_NETWORK", true},
		{dir, nil, "read", false}, // an error of reading
	} {
		var log logtest.Log
		left, err := cleaner{SubnetFile: c.path, Log: log.Logger()}.left()
		if runtime.GOOS == "windows" {
			if err != nil || (log.Count("level=WARN") == 1) != (c.err != "") {
				t.Errorf("%s: %v, logged: %s", c.path, err, &log)
			}
		} else if (err != nil) != (c.err != "") || errors.Is(err, subnet.ErrMalformed) != c.malformed ||
			err != nil && (!logtest.Names(err.Error(), c.path, c.err) || logtest.Names(err.Error(), "delete") ||
				logtest.Names(err.Error(), "repair") != c.malformed) {
			t.Errorf("%s: %v", c.path, err)
		}
		var got []string
		for _, n := range slices.Concat(left.Networks, left.Subnets, left.FormerSubnets) {
			got = append(got, n.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.path, diff)
		}
	}
}
