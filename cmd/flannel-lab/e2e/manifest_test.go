package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
)

// container replaces a container runtime: its arguments run with the given
// capabilities, on a read-only root except for the volumes, with /proc/sys as
// in containers, and with the files of the image in their places. The CNI
// directories belong to another user than root, as Kubespray makes them.
const container = `#!/bin/sh
exec unshare -m sh -eu -c '
	mount -t tmpfs tmpfs /opt
	mkdir -p /opt/bin /opt/flannel/cni /opt/cni/bin
	cp BIN/flanneld /opt/bin/flanneld
	cp BIN/cni/flannel /opt/flannel/cni/flannel
	touch /run/xtables.lock
	chown 997 /opt/cni/bin /etc/cni/net.d
	for volume in VOLUMES; do mount --bind "$volume" "$volume"; done
	mount --bind /proc/sys /proc/sys
	for place in / /run /etc /var/lib /opt /proc/sys; do mount -o remount,bind,ro "$place"; done
	exec setpriv --bounding-set=-allCAPABILITIES --inh-caps=-all --no-new-privs "$@"
' sh "$@"
`

// script writes container for a container of the manifest, and returns the
// path.
func script(t *testing.T, spec corev1.PodSpec, c corev1.Container) string {
	t.Helper()
	s := c.SecurityContext
	if spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.Privileged != nil ||
		!*s.ReadOnlyRootFilesystem ||
		*s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Fatalf("%s needs privileges that this test cannot grant: %+v", c.Name, s)
	}
	capabilities := ""
	for _, name := range s.Capabilities.Add {
		capabilities += ",+" + strings.ToLower(string(name))
	}
	var volumes []string
	for _, m := range c.VolumeMounts {
		if !m.ReadOnly {
			volumes = append(volumes, m.MountPath)
		}
	}
	bin, err := lab.BinDir()
	must(t, err)
	file := filepath.Join(t.TempDir(), "container")
	text := strings.NewReplacer("BIN", bin, "VOLUMES", strings.Join(volumes, " "), "CAPABILITIES",
		capabilities).Replace(container)
	must(t, os.WriteFile(file, []byte(text), 0o755))
	return file
}

// podSpec returns the pod of a DaemonSet.
func podSpec(t *testing.T, o *unstructured.Unstructured) corev1.PodSpec {
	t.Helper()
	text, err := o.MarshalJSON()
	must(t, err)
	var set appsv1.DaemonSet
	must(t, json.Unmarshal(text, &set))
	return set.Spec.Template.Spec
}

// The pod of the DaemonSet as in the manifest: commands, arguments,
// environment, privileges, volumes, probes and token. It has no other access to
// the API server than every pod has.
func TestManifestAsItIs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := bare(t, lab.Options{Kube: true, Nodes: 2, Family: lab.Dual})
	o, err := l.Kube.Object("DaemonSet")
	must(t, err)
	spec := podSpec(t, o)
	main, beside, first := spec.Containers[0], spec.Containers[1], spec.InitContainers[0]
	must(t, l.SetConfig(ctx, l.Config(`{"Type":"vxlan"}`)))
	needsCapability(t, l.Nodes[0], spec, first)
	for _, n := range l.Nodes {
		// A container cannot set these. The operator must, also in a real cluster.
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, n.WriteFile("/proc/sys/net/"+name, "1"))
		}
		_, err := n.Run(ctx, append([]string{script(t, spec, first)}, slices.Concat(first.Command, first.Args)...)...)
		must(t, err)
		checkFile(t, n, "/etc/cni/net.d/10-flannel.conflist")
		n.Env = l.Kube.PodEnv()
		must(t, n.StartIn(script(t, spec, main), slices.Concat(main.Command, main.Args)...))
	}
	keeper := exec.Command(script(t, spec, beside), slices.Concat(beside.Command, beside.Args)...)
	must(t, l.Nodes[0].Machine.Start(keeper))
	go func() { _ = keeper.Wait() }() // it is killed with the machine
	for _, n := range l.Nodes {
		must(t, n.Ready(ctx)) // uses the port of the probes
	}
	for _, p := range []*corev1.Probe{main.LivenessProbe, main.ReadinessProbe} {
		if p.HTTPGet.Port.IntValue() != lab.HealthPort || p.HTTPGet.Host != "127.0.0.1" {
			t.Errorf("a probe uses %s:%d", p.HTTPGet.Host, p.HTTPGet.Port.IntValue())
		}
		within(t, p.HTTPGet.Path, func() error {
			code, body, err := l.Nodes[0].Ask(ctx, p.HTTPGet.Path)
			if err == nil && code != 200 {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	a, b := pod(t, l.Nodes[0], "a"), pod(t, l.Nodes[1], "b")
	talk(t, a, b, a.IP4, b.IP4, lab.Outside4)
	talk(t, a, b, a.IP6, b.IP6, lab.Outside6)
	within(t, "the CNI container has written its files", func() error {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root/opt/cni/bin/flannel", keeper.Process.Pid))
		return err
	})
	confined(t, l.Nodes[0].PID(), main, 0)
	confined(t, keeper.Process.Pid, beside, unix.SECCOMP_MODE_FILTER)
	meshJoins(t, l.Nodes[0])
	for _, n := range l.Nodes {
		all := n.Records(0)
		for _, r := range slices.Concat(all.With("level=WARN"), all.With("level=ERROR")) {
			// On a busy machine, the file of the configuration and the API server may take longer than a second.
			if r["cause"] != "no-config" && r["cause"] != "store-silent" && r["cause"] != "store-busy" {
				t.Errorf("%s logged a warning: %s", n.Name, r[""])
			}
		}
	}
}

// needsCapability checks that install-cni, without a capability, cannot write directories that root does not own.
func needsCapability(t *testing.T, n *lab.Node, spec corev1.PodSpec, c corev1.Container) {
	t.Helper()
	none := *c.DeepCopy()
	none.SecurityContext.Capabilities.Add = nil
	_, err := n.Run(t.Context(), append([]string{script(t, spec, none)}, slices.Concat(c.Command, c.Args)...)...)
	if err == nil || !strings.Contains(err.Error(), unix.EACCES.Error()) {
		t.Errorf("install-cni without a capability: %v", err)
	}
}

// The cleanup of the manifest sees the processes of its node: beside a flannel, which has no lock, it removes nothing. Of one
// with more capabilities than its own it cannot read more than the arguments.
func TestCleanupAsItIs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(nettest.Root(t), "Documentation", "kube-flannel-cleanup.yml"))
	must(t, err)
	objects, err := cluster.Objects(text)
	must(t, err)
	spec := podSpec(t, objects[0])
	c := spec.InitContainers[0]
	command := script(t, spec, c) + " " + strings.Join(c.Command, " ")
	if !spec.HostPID {
		command = "unshare --pid --fork --mount-proc " + command
	}
	l := prepare(t, lab.Options{Nodes: 2}, `{"Type":"vxlan"}`)
	n := l.Nodes[0]
	// No link-local addresses, which change by themselves.
	in(t, n.Namespaces, "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode")
	must(t, l.StartAll(t.Context()))
	hasPeers(t, n, 1)
	stopped(t, n)

	program := filepath.Join(t.TempDir(), "flanneld")
	must(t, os.Symlink("/bin/sleep", program))
	before := in(t, n.Namespaces, lab.NetworkState)
	for _, args := range [][]string{{script(t, spec, c), program, "infinity"}, {program, "infinity"}} { // in such a pod, and a service
		flannel, err := machine.StartProcess(n.Machine, exec.Command(args[0], args[1:]...), "flannel.log")
		must(t, err)
		within(t, "flannel runs", func() error { return runs(flannel.PID(), program) })
		out, code := exitStatus(t, n, command)
		service, known, denied := args[0] == program, logtest.Names(out, "/run/flannel/subnet.env"), strings.Contains(out, unix.EACCES.Error())
		if code != 6 || known == service || denied != service {
			t.Errorf("beside %s it ends with %d and prints\n%s", args, code, out)
		}
		if change := lab.Changes(before, in(t, n.Namespaces, lab.NetworkState)); change != "" {
			t.Errorf("beside %s it changed\n%s", args, change)
		}
		_, err = flannel.Stop(t.Context(), unix.SIGKILL)
		must(t, err)
	}
	if out, code := exitStatus(t, n, command); code != 0 || !strings.Contains(out, "device flannel.1\n") {
		t.Errorf("when flannel has ended, it ends with %d and prints\n%s", code, out)
	}
}

// runs returns an error unless a process, which calls execve, has become a program.
func runs(pid int, program string) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil && !strings.HasPrefix(string(text), program+"\x00") {
		err = fmt.Errorf("it is %q", text)
	}
	return err
}

func checkFile(t *testing.T, n *lab.Node, path string) {
	t.Helper()
	if _, err := n.ReadFile(path); err != nil {
		t.Error(err)
	}
}

const netD = "/etc/cni/net.d/10-flannel.conflist"

// meshJoins adds a plugin to the chain, as service meshes do. It must stay, and
// a deleted file must be restored.
func meshJoins(t *testing.T, n *lab.Node) {
	t.Helper()
	_, err := n.Run(t.Context(), "rm", netD)
	must(t, err)
	within(t, "the CNI configuration is restored", func() error { _, err := n.ReadFile(netD); return err })
	text, err := n.ReadFile(netD)
	must(t, err)
	var conf map[string]any
	must(t, json.Unmarshal(text, &conf))
	conf["plugins"] = append(conf["plugins"].([]any), map[string]any{"type": "tuning", "name": "mesh"})
	chained, err := json.Marshal(conf)
	must(t, err)
	// As such plugins do: a file that is written in place is empty for a moment, and would be restored then.
	must(t, n.WriteFile(netD+".new", string(chained)))
	in(t, n.Namespaces, "mv "+netD+".new "+netD)
	// A change of the ConfigMap must keep the plugin of the mesh.
	const source = "/etc/kube-flannel/cni-conf.json"
	text, err = n.ReadFile(source)
	must(t, err)
	must(t, n.WriteFile(source, strings.Replace(string(text), `"hairpinMode": true`, `"hairpinMode": false`, 1)))
	within(t, "the change is applied, and the mesh stays", func() error {
		got, err := n.ReadFile(netD)
		if err == nil && (!strings.Contains(string(got), `"hairpinMode": false`) ||
			!strings.Contains(string(got), `"mesh"`)) {
			err = fmt.Errorf("the mesh wrote\n%s\nthe file is\n%s", chained, got)
		}
		return err
	})
}

// confined checks that a process has the intended privileges, logs its memory,
// and checks that of the CNI directories it can only write its volumes.
func confined(t *testing.T, pid int, c corev1.Container, seccomp int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	want := 0
	for _, name := range c.SecurityContext.Capabilities.Add {
		want |= map[corev1.Capability]int{"DAC_OVERRIDE": 1 << 1, "NET_ADMIN": 1 << 12, "NET_RAW": 1 << 13}[name]
	}
	for _, line := range []string{fmt.Sprintf("CapEff:\t%016x\n", want), "NoNewPrivs:\t1\n",
		fmt.Sprintf("Seccomp:\t%d\n", seccomp)} {
		if !strings.Contains(string(text), line) {
			t.Errorf("%s has other privileges than %s:\n%s", c.Name, line, text)
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "VmHWM") {
			t.Logf("%s used %s; the manifest requests %s, limit %s", c.Name, strings.Fields(line)[1]+" KiB",
				c.Resources.Requests.Memory(), c.Resources.Limits.Memory())
		}
	}
	for _, dir := range []string{"/opt/cni/bin", "/etc/cni/net.d"} {
		var fs unix.Statfs_t
		must(t, unix.Statfs(fmt.Sprintf("/proc/%d/root%s", pid, dir), &fs))
		mounted := slices.ContainsFunc(c.VolumeMounts,
			func(m corev1.VolumeMount) bool { return m.MountPath == dir && !m.ReadOnly })
		if writable := fs.Flags&unix.ST_RDONLY == 0; writable != mounted {
			t.Errorf("%s can write %s: %v", c.Name, dir, writable)
		}
	}
}
