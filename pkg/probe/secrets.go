package probe

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"flannel/pkg/doctor"
	"flannel/subnet/kube"
)

// knownSecrets returns a redactor with all secrets that this process can read. It
// replaces these values wherever they are in a file; values that nobody knows here
// are recognized only by their form or the name before them (redact.go), so more sources
// are better than fewer.
func knownSecrets(o BundleOptions, s doctor.Snapshot, files map[string][]byte) *redactor {
	r := newRedactor()
	r.add(o.Password.Reveal())
	for _, path := range []string{o.KeyFile, cmp.Or(os.Getenv("WIREGUARD_KEY_FILE"), "/run/flannel/wgkey"), kube.TokenFile()} {
		r.addFile(path)
	}
	r.addKubeconfig(o.Kubeconfig)
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

// addKubeconfig adds the secrets of a kubeconfig, and those in files that it names.
func (r *redactor) addKubeconfig(path string) {
	raw, _ := os.ReadFile(path)
	r.addKeyed(raw) // most of it is not secret
	c, err := clientcmd.LoadFromFile(path)
	if err != nil || clientcmd.ResolveLocalPaths(c) != nil {
		r.addURL(string(raw)) // of the rest, what addKeyed has found remains
		return
	}
	for _, cluster := range c.Clusters {
		r.addURL(cluster.Server)
		r.addURL(cluster.ProxyURL)
	}
	for _, user := range c.AuthInfos {
		r.add(user.Token)
		r.add(user.Password)
		r.addLines(string(user.ClientKeyData))
		r.addFile(user.TokenFile)
		r.addFile(user.ClientKey)
		if user.Exec != nil { // a program that prints credentials
			var env []string
			for _, e := range user.Exec.Env {
				env = append(env, e.Name+"="+e.Value)
			}
			r.addSettings(user.Exec.Args, env)
		}
	}
}

// fromProc reads a list of strings about a process from /proc. It is empty if the
// process has ended, and on Windows.
func fromProc(pid int, file string) []string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	return strings.Split(string(raw), "\x00")
}
