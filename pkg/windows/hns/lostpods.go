package hns

// This file has what it takes to find running pods of a Windows node whose HNS
// endpoint is gone, such as after a restart of HNS. Nobody creates an endpoint again
// for a running pod (calico#5164), so the pod has no network until it is deleted. The
// driver's podWatcher, in a goroutine of its own, and flanneld doctor decide which pods
// are lost.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Pod is a pod that the container runtime has given a network: the runtime has a result
// for it, which it deletes when it removes the network. A pod with two networks has two
// results, and is two Pods with one Sandbox.
type Pod struct {
	Name      string // with its namespace in Kubernetes, as in "default/web-1"; else the ID of its sandbox
	Sandbox   string // ID
	Network   string // name
	Namespace string // ID of its HNS namespace
}

// ReadPods returns the pods in the directory in which the CNI library, a part of the
// container runtime, keeps results of plugins. Files that it does not understand are
// ignored. Without the directory, there are none. The pods are of all networks:
// podWatcher takes those of its own.
func ReadPods(dir string) (pods []Pod, err error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // such as one that was just deleted
		}
		if p, ok := decodePod(raw); ok {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// decodePod returns the pod of a file; false, if the file is of another kind, or the pod
// has no namespace.
func decodePod(raw []byte) (p Pod, ok bool) {
	var d struct { // a part of what libcni writes; NetNS is the ID of the HNS namespace
		ContainerID, NetworkName, NetNS string
		CNIArgs                         [][2]string
	}
	if json.Unmarshal(raw, &d) != nil || d.ContainerID == "" || d.NetNS == "" {
		return p, false
	}
	args := map[string]string{} // CNI_ARGS of the plugin, which kubelet's runtime sets
	for _, a := range d.CNIArgs {
		args[a[0]] = a[1]
	}
	p = Pod{Name: d.ContainerID, Sandbox: d.ContainerID, Network: d.NetworkName, Namespace: d.NetNS}
	if name := args["K8S_POD_NAME"]; name != "" {
		p.Name = args["K8S_POD_NAMESPACE"] + "/" + name
	}
	return p, true
}

// PodEndpoints are the endpoints that HNS has, by what uses them.
type PodEndpoints struct {
	exists     map[string]bool     // IDs of endpoints, in lower case
	namespaces map[string][]string // by the ID of a namespace, in lower case
}

// NewPodEndpoints takes the IDs of all endpoints of the pods' network, and all namespaces.
// podWatcher and the doctor read them from HNS; the doctor takes those of all networks.
func NewPodEndpoints(ids []string, namespaces []Namespace) PodEndpoints {
	e := PodEndpoints{map[string]bool{}, map[string][]string{}}
	for _, id := range ids {
		e.exists[strings.ToLower(id)] = true
	}
	for _, n := range namespaces {
		e.namespaces[strings.ToLower(n.ID)] = n.Endpoints
	}
	return e
}

// Of returns the ID of the pod's endpoint, "" if it has none, and whether its namespace
// exists. Without both, the pod may just be ending; the callers decide. A namespace may
// still list an endpoint that does not exist.
func (e PodEndpoints) Of(p Pod) (id string, namespace bool) {
	listed, namespace := e.namespaces[strings.ToLower(p.Namespace)]
	i := slices.IndexFunc(listed, func(id string) bool { return e.exists[strings.ToLower(id)] })
	if i < 0 {
		return "", namespace
	}
	return strings.ToLower(listed[i]), namespace
}

// PodNames returns the sorted names of pods.
func PodNames(pods []Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
