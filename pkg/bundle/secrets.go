package bundle

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"flannel/pkg/doctor"
	"flannel/pkg/redact"
)

// secretsKnown are all that this program can get at: who reads the bundle shall find none of them in it.
func secretsKnown(o Options, s doctor.Snapshot, files map[string][]byte) *redact.Redactor {
	r := redact.New()
	r.Add(o.Password.Reveal())
	for _, path := range []string{o.KeyFile, cmp.Or(os.Getenv("WIREGUARD_KEY_FILE"), "/run/flannel/wgkey"), "/var/run/secrets/kubernetes.io/serviceaccount/token"} {
		r.AddFile(path)
	}
	raw, _ := os.ReadFile(o.Kubeconfig) // most of it is no secret; no file has none
	r.AddKeyed(raw)
	r.AddSettings(os.Args, os.Environ())
	for _, p := range s.Processes.Value { // the daemon may have been given what this command was not
		r.AddSettings(fromProc(p.PID, "cmdline"), fromProc(p.PID, "environ"))
	}
	for name, text := range files {
		if strings.HasPrefix(name, "config/") {
			r.AddKeyed(text)
		}
	}
	return r
}

// fromProc reads what Linux has of another process; of one that is gone, or elsewhere, nothing.
func fromProc(pid int, what string) []string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, what))
	return strings.Split(string(raw), "\x00")
}
