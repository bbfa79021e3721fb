// Package cluster runs a whole Kubernetes cluster on one machine: a real
// control plane, and nodes with the real containerd, runc, kubelet and
// kube-proxy. It needs no container engine, no registry and no virtual machine.
//
// As in package lab, everything is below one process in a PID namespace of its
// own, all files are on a tmpfs, and both go when that process ends. Empty
// control groups are all that a killed cluster leaves: see cgroups.
//
//	flannel-lab cluster serve      (see package machine for the processes above it)
//	├─ infra                       process 1 of a Machine: bridge, router
//	│  └─ kube-apiserver with etcd, kube-controller-manager, kube-scheduler
//	└─ node1                       process 1 of a Machine with control groups of its own
//	   ├─ containerd, kubelet, kube-proxy
//	   └─ pods
//
// The images come from `flannel-release lab`.
package cluster
