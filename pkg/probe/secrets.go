package probe

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"flannel/pkg/doctor"
	"flannel/pkg/file"
)

// knownSecrets returns a redactor with all secrets that this process can read. It
// replaces these values wherever they are in a file; values that nobody knows here
// are recognized only by their form or the name before them (redact.go), so more sources
// are better than fewer.
func knownSecrets(o BundleOptions, s doctor.Snapshot, files map[string][]byte) *redactor {
	r := newRedactor()
	r.add(o.Password.Reveal())
	const token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	for _, path := range []string{o.KeyFile, cmp.Or(os.Getenv("WIREGUARD_KEY_FILE"), "/run/flannel/wgkey"), file.Mounted(os.Getenv(file.SandboxMount), token)} {
		r.addFile(path)
	}
	raw, _ := os.ReadFile(o.Kubeconfig) // addKeyed, because most of it is not secret
	r.addKeyed(raw)
	r.addSettings(os.Args, os.Environ())
	for _, p := range s.Processes.Value { // the daemon may have other settings than this process
		environ := fromProc(p.PID, "environ")
		r.addSettings(fromProc(p.PID, "cmdline"), environ)
		for _, e := range environ {
			if path, is := strings.CutPrefix(e, "WIREGUARD_KEY_FILE="); is {
				r.addFile(path)
			}
		}
	}
	for name, text := range files {
		if strings.HasPrefix(name, "config/") {
			r.addKeyed(text)
		}
	}
	return r
}

// fromProc reads a list of strings about a process from /proc. It is empty if the
// process has ended, and on Windows.
func fromProc(pid int, file string) []string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	return strings.Split(string(raw), "\x00")
}
