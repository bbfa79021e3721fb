package dist_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/google/go-cmp/cmp"
)

// daemonSet decodes the DaemonSet of the Linux nodes.
func daemonSet(t *testing.T, text string) (set appsv1.DaemonSet) {
	t.Helper()
	for _, o := range objects(t, text) {
		if o.GetKind() != "DaemonSet" || o.GetName() != "kube-flannel-ds" {
			continue
		}
		raw, err := o.MarshalJSON()
		if err == nil {
			err = json.Unmarshal(raw, &set)
		}
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	t.Fatalf("there is no DaemonSet in\n%s", text)
	return set
}

// everyText returns the manifest and the chart's output for each set of values.
func everyText(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"manifest": manifest(t)}
	for name, v := range values {
		text, err := chart(t, v)
		if err != nil {
			t.Fatal(name, err, text)
		}
		all["chart: "+name] = text
	}
	return all
}

// The container that uses the network cannot write a directory from which the host runs programs. The containers that can
// do not have the token, and of the capabilities only the one to write directories that root does not own.
func TestContainers(t *testing.T) {
	for name, text := range everyText(t) {
		pod := daemonSet(t, text).Spec.Template.Spec
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: every container gets the token", name)
		}
		if pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: no seccomp profile", name)
		}
		hostPaths := map[string]string{} // by the volume's name
		for _, v := range pod.Volumes {
			if v.HostPath != nil {
				hostPaths[v.Name] = v.HostPath.Path
			}
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.Name == "kube-network-policies" {
				continue // another project's, and off by default
			}
			var dirs []string
			token := false
			for _, m := range c.VolumeMounts {
				token = token || m.Name == "api-access"
				if path, ok := hostPaths[m.Name]; ok && !m.ReadOnly {
					dirs = append(dirs, path)
				}
			}
			keepsCNI := slices.Contains([]string{"install-cni", "keep-cni"}, c.Name)
			switch {
			case keepsCNI && (token || !slices.Equal(c.SecurityContext.Capabilities.Add, []corev1.Capability{"DAC_OVERRIDE"})):
				t.Errorf("%s: %s has the token (%v) or capabilities %v", name, c.Name, token, c.SecurityContext.Capabilities.Add)
			case c.Name == "kube-flannel" && (!token || !slices.Equal(dirs, []string{"/run/flannel", "/run/xtables.lock"})):
				t.Errorf("%s: %s has the token (%v) and can write %v", name, c.Name, token, dirs)
			case !keepsCNI && slices.ContainsFunc(dirs, func(d string) bool { return strings.Contains(d, "cni") }):
				t.Errorf("%s: %s can write %v", name, c.Name, dirs)
			}
			s := c.SecurityContext
			if privileged := slices.Contains([]string{"chart: udp", "chart: privileged"}, name); privileged && c.Name == "kube-flannel" {
				if s.Privileged == nil || !*s.Privileged || !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: %s is not privileged: %+v", name, c.Name, s)
				}
				continue
			}
			if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Privileged != nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %s has privileges: %+v", name, c.Name, s)
			}
			if c.Name == "keep-cni" && (!slices.Contains(c.Command, "--watch") || c.Resources.Limits.Memory().IsZero()) {
				t.Errorf("%s: %s runs %v with limits %v", name, c.Name, c.Command, c.Resources.Limits)
			}
		}
	}
}

// The volume with the token has the files that kubelet would mount.
func TestTokenVolume(t *testing.T) {
	pod := daemonSet(t, manifest(t)).Spec.Template.Spec
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "api-access" })
	if i < 0 || pod.Volumes[i].Projected == nil {
		t.Fatal("there is no volume with the token")
	}
	var files []string
	for _, s := range pod.Volumes[i].Projected.Sources {
		switch {
		case s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == "":
			files = append(files, s.ServiceAccountToken.Path)
		case s.ConfigMap != nil && s.ConfigMap.Name == "kube-root-ca.crt":
			files = append(files, s.ConfigMap.Items[0].Path)
		case s.DownwardAPI != nil:
			files = append(files, s.DownwardAPI.Items[0].Path)
		}
	}
	if diff := cmp.Diff([]string{"token", "ca.crt", "namespace"}, files); diff != "" {
		t.Error(diff)
	}
}

// The kustomize component for udp makes the container that uses the network privileged, and no other. The API server
// accepts it, and the patch of the page, by which a DaemonSet gets the same. The chart does so by itself.
func TestUDPIsPrivileged(t *testing.T) {
	t.Parallel()
	privileged := func(what string, set appsv1.DaemonSet) {
		t.Helper()
		for _, c := range set.Spec.Template.Spec.Containers {
			if is := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged; is != (c.Name == "kube-flannel") {
				t.Errorf("%s: %s is privileged: %v", what, c.Name, is)
			}
		}
	}
	for _, v := range []string{"backend: {Type: udp}\n", "backend: {Type: UDP}\n", "netConf: {Backend: {Type: Udp}}\n", "flannel: {backend: udp}\n"} {
		text, err := chart(t, v)
		if err != nil {
			t.Fatal(err, text)
		}
		privileged(v, daemonSet(t, text))
	}
	u := newUser(t)
	u.run(`mkdir own && printf 'resources: [../Documentation]\ncomponents: [../Documentation/udp]\n' >own/kustomization.yaml && kubectl apply -k own`)
	privileged("kustomize", *u.daemonSet())
	u.run("kubectl apply -k Documentation")
	u.run(u.block("backends.md", "udp-privileged"))
	privileged("patch", *u.daemonSet())
}
