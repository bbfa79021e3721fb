package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"flannel/pkg/conf"
	"flannel/pkg/doctor"
)

// secretsKnown are all that this program can get at: who reads the bundle shall find none of them in it.
func secretsKnown(o options, s doctor.Snapshot, files map[string][]byte) *redactor {
	r := newRedactor()
	r.add(o.Etcd.Password.reveal())
	for _, path := range []string{o.Etcd.KeyFile, cmp.Or(os.Getenv("WIREGUARD_KEY_FILE"), "/run/flannel/wgkey"), "/var/run/secrets/kubernetes.io/serviceaccount/token"} {
		r.addFile(path)
	}
	raw, _ := os.ReadFile(o.Kube.Kubeconfig) // most of it is no secret; no file has none
	r.secretsOf(raw)
	r.addSettings(os.Args, os.Environ())
	for _, p := range s.Processes.Value { // the daemon may have been given what this command was not
		r.addSettings(fromProc(p.PID, "cmdline"), fromProc(p.PID, "environ"))
	}
	for name, text := range files {
		if strings.HasPrefix(name, "config/") {
			r.secretsOf(text)
		}
	}
	return r
}

// fromProc reads what Linux has of another process; of one that is gone, or elsewhere, nothing.
func fromProc(pid int, what string) []string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, what))
	return strings.Split(string(raw), "\x00")
}

// addSettings knows the values of flags and variables whose names say that they are secret.
func (r *redactor) addSettings(args, environ []string) {
	_, secrets := conf.HideArgs(args)
	for _, text := range secrets {
		r.add(text)
	}
	for _, e := range environ {
		if name, value, _ := strings.Cut(e, "="); conf.Secret(name) {
			r.add(value)
		}
	}
}

// hideVariables hides the values of variables whose names say that they are secret.
func hideVariables(environ []string) []string {
	shown := slices.Clone(environ)
	for i, e := range shown {
		if name, _, _ := strings.Cut(e, "="); conf.Secret(name) {
			shown[i] = name + "=" + redacted
		}
	}
	return shown
}
