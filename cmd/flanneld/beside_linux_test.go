package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
	"flannel/pkg/probe"
	"flannel/pkg/status"
	"flannel/subnet"
)

// A daemon without a lock, as flannel is, is found by its process.
func TestCleanupBesideFlannel(t *testing.T) {
	dir := t.TempDir()
	program, file := filepath.Join(dir, "flanneld"), filepath.Join(dir, "subnet.env")
	if err := os.Symlink("/bin/sleep", program); err != nil {
		t.Fatal(err)
	}
	says := func() (int, string) {
		code, out, _ := flanneldSays(t.Context(), "--subnet-file="+file, "handback", "--json")
		return code, out
	}
	if err := os.WriteFile(file, []byte("FLANNEL_NETWORK=10.5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var c call
	c.SubnetFile = file
	if err := c.daemonBeside(); !errors.Is(err, subnet.ErrMalformed) {
		t.Errorf("with a malformed subnet file: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	flannel := exec.Command(program, "3600")
	flannel.Env = []string{"FLANNELD_SUBNET_FILE=" + file}
	if err := flannel.Start(); err != nil {
		t.Fatal(err)
	}
	defer flannel.Wait()         //nolint:errcheck // it is killed
	defer flannel.Process.Kill() //nolint:errcheck // it may have ended
	if code, out := says(); code != exitHeld || read[handbackAnswer](t, out).Problem == "" {
		t.Errorf("beside flannel it ends with %d and says %s", code, out)
	}
	if _, err := os.Stat(status.Lock(file)); err != nil {
		t.Errorf("it did not try the lock before: %v", err)
	}
}

// A daemon that may be in another network namespace counts only if it conflicts, or if its subnet file is not known. A
// conflict comes before an error.
func TestBesideUnknown(t *testing.T) {
	named := probe.Daemon{PID: 7, Args: []string{"--subnet-file=/a"}, WhyNot: "denied"}
	environ := probe.Daemon{PID: 8, Environ: []string{"FLANNELD_SUBNET_FILE=/a"}, WhyNot: "denied"}
	unread := probe.Daemon{PID: 9, Args: []string{"--ip-masq"}, WhyNot: "denied"}
	newer := probe.Daemon{PID: 11, Args: []string{"--new-flag=x", "--subnet-file=/b"}, Environ: []string{}}
	overridden := newer
	overridden.Environ = []string{"FLANNELD_SUBNET_FILE=/a"}
	relative := probe.Daemon{PID: 12, Args: []string{"--subnet-file=a"}, Environ: []string{}}
	here := probe.Daemon{PID: 10, Args: []string{"--subnet-file=/a"}, Environ: []string{}}
	for name, c := range map[string]struct {
		file   string
		found  []probe.Daemon
		err    error
		names  string // in the error; "": there is none
		silent string // what the error does not name
	}{
		"the same subnet file":         {"/a", []probe.Daemon{named}, nil, "7 /a denied root", ""},
		"another one":                  {"/b", []probe.Daemon{named}, nil, "", ""},
		"the same one, by environment": {"/a", []probe.Daemon{environ}, nil, "8 /a denied root", ""},
		"another one, by environment":  {"/b", []probe.Daemon{environ}, nil, "", ""},
		"any":                          {"/b", []probe.Daemon{unread}, nil, "9 denied root", "subnet.env"},
		"behind an unknown flag":       {"/b", []probe.Daemon{newer}, nil, "11 unknown", "/b"},
		"behind one, the environment":  {"/b", []probe.Daemon{overridden}, nil, "11 unknown", "/b"},
		"a relative path":              {"/b", []probe.Daemon{relative}, nil, "12 relative", "/b"},
		"a daemon of this node":        {"/a", []probe.Daemon{here}, errors.New("unread arguments"), "10 /a", "unread arguments"},
		"beside unread arguments":      {"/b", []probe.Daemon{here}, errors.New("unread arguments"), "unread arguments root", "subnet.env"},
	} {
		switch err := conflicting(c.file, false, c.found, c.err); {
		case (err != nil) != (c.names != ""):
			t.Errorf("%s: %v", name, err)
		case err != nil && (exitCode(err) != exitHeld || !logtest.Names(err.Error(), strings.Fields(c.names)...) || c.silent != "" && logtest.Names(err.Error(), c.silent)):
			t.Errorf("%s: status %d, %v", name, exitCode(err), err)
		}
	}
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		command, daemon string
		gone, want      bool
	}{
		{"", "", false, true}, {"", "", true, true}, {"a", "a", false, true},
		{"", "a", false, false}, {"", "a", true, true}, // all of everyone's is removed
		{"a", "", true, false}, {"a", "b", true, false},
	} {
		if got := conflicts(c.command, c.daemon, c.gone); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// The doctor finds two daemons with the same subnet file, by their arguments or environments. Those with files of their own are of
// different networks.
func TestDoctorBeside(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		start := func(mode, environ string, args ...string) {
			t.Helper()
			cmd := exec.Command("/proc/self/exe", args...)
			cmd.Args[0], cmd.Env = "flanneld", []string{environ, mode + "=1"}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		}
		finds := func(want doctor.Verdict) {
			t.Helper()
			_, out, problems := flanneldSays(t.Context(), "doctor", "--timeout=5m", "--json")
			results := read[[]doctor.Result](t, out)
			i := slices.IndexFunc(results, func(r doctor.Result) bool { return r.Code == "FL102" })
			if i < 0 {
				t.Fatalf("FL102 is not among the results\n%s", problems)
			}
			if r := results[i]; r.Verdict != want {
				t.Errorf("FL102 is %s, %q, want %s\n%s", r.Verdict, r.Seen, want, problems)
			}
		}
		const a, b = "FLANNELD_SUBNET_FILE=/run/a/subnet.env", "FLANNELD_SUBNET_FILE=/run/b/subnet.env"
		start(beWaiting, "")
		start(beWaiting, a)
		start(beFlanneld, a, "--subnet-file=/run/c/../b/subnet.env", "--etcd-endpoints=http://127.0.0.1:1")
		finds(doctor.OK)
		start(beWaiting, "", "--new-flag=x", "--subnet-file=/run/c/subnet.env") // behind an unknown flag
		finds(doctor.Undecided)
		start(beWaiting, b)
		finds(doctor.Fail)
	})
}
