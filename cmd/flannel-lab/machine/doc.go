// Package machine builds machines from namespaces, and runs programs in them.
// All of it is below one process in a PID namespace of its own (see Init), so
// everything ends when that process ends. The package does not know flannel.
//
// The processes of a lab with one node:
//
//	flannel-lab demo          the caller of Init; forwards signals
//	└─ roleInit               process 1 of the lab's PID namespace; reaps orphans
//	   └─ roleInside          the program itself, in which Init has returned
//	      ├─ roleHold node1   process 1 of a Machine
//	      │  └─ flanneld …    a Process: in its namespaces, though a child of roleInside
//	      └─ roleHold infra
//	         └─ etcd …
//
// If any of the first three dies, the kernel kills everything below it. (A program
// started by Command does not depend on its caller.)
package machine
