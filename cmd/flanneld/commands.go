package main

import (
	"context"

	"flannel/pkg/windows/service"
)

// command is a row in the table of commands. The table defines the help, the
// names that the command line accepts, and the functions to run.
type command struct {
	name, help string
	about      string // the first part of the command's own help; "": help
	example    string // command lines, indented by two spaces
	// flags declares the command's own flags and returns the function to run after
	// they are parsed, which returns the exit code. The flags' values are variables
	// of the closure.
	flags func(*call) func(context.Context) int
	// below replaces flags if the command only groups others, as service does. The
	// daemon's flags cannot come before these: one of them may pass them on.
	below   []command
	operand string         // what may follow the flags, such as "[FILE]"; at most one; "": nothing
	passes  bool           // flags of the daemon may follow after "--", which the command passes on
	exits   map[int]string // the meaning of exit codes, in addition to commonExits
	system  string         // the help of other operating systems does not list it; "": for all
	hidden  bool           // no help lists it
	windows bool           // it fails on other systems
	kubeAPI bool           // it can use the Kubernetes API although the leases are in etcd, so that flags of Kubernetes have an effect
}

// commands returns the table. A new command needs one function and one row here.
func commands() []command {
	return []command{
		{name: "status", flags: showStatus, about: aboutStatus, help: "show the state of the running daemon, or of all Nodes of the cluster", kubeAPI: true,
			example: "  flanneld status --peers\n  flanneld --kubeconfig-file=admin.conf status --cluster",
			exits: map[int]string{exitOK: "the daemon is ready; with --cluster: all Nodes are", exitNotReady: "it is not ready; with --cluster: a Node is not, or there is none",
				exitNotRunning: notRunning, exitNoAnswer: noAnswer}},
		{name: "accept-withdrawal", flags: acceptWithdrawal, about: aboutAcceptWithdrawal, help: "drop the peers that the daemon retains after a mass withdrawal",
			exits: map[int]string{exitNotRunning: notRunning, exitNoAnswer: noAnswer}},
		{name: "doctor", flags: doctorCommand, help: "check this node for common problems, and suggest fixes",
			exits: map[int]string{exitOK: "no check failed", exitNotReady: "a check failed"}},
		{name: "check-config", flags: checkConfig, about: aboutCheckConfig, kubeAPI: true, operand: "[FILE|-]", help: "check a network configuration, and change nothing",
			example: "  flanneld check-config net-conf.json\n  etcdctl get --print-value-only /coreos.com/network/config | flanneld check-config -\n  flanneld --kubeconfig-file=admin.conf check-config --kube",
			exits:   map[int]string{exitOK: "the configuration is valid", exitNotReady: "it is not"}},
		{name: "wait", flags: wait, about: aboutWait, help: "wait until the daemon is ready, and print what it waits for",
			exits: map[int]string{exitOK: "the daemon is ready", exitNotReady: "it was not ready in time", exitNotRunning: "it did not answer"}},
		{name: "cni-conf", flags: makeCNIConf, about: aboutCNIConf, system: "windows", help: "write the CNI configuration of a Windows node",
			example: "  flanneld --kube-subnet-mgr cni-conf --service-cidr=10.96.0.0/12",
			exits:   map[int]string{exitNotReady: "the file was edited, and was left unchanged"}},
		{name: "cni-dirs", flags: showCNIDirs, about: aboutCNIDirs, help: "show where the container runtime looks for CNI"},
		{name: "install-cni", flags: installCNI, about: aboutInstallCNI, help: "install the CNI plugin and its configuration"},
		{name: "net-conf", flags: makeNetConf, about: aboutNetConf, system: "windows", help: "write the network configuration of a Windows node if there is none",
			example: "  flanneld --kube-subnet-mgr net-conf --network-mode=l2bridge"},
		{name: "prepare", flags: prepare, about: aboutPrepare, system: "windows", windows: true,
			help: "create the adapter's virtual switch before the network is needed"},
		{name: "source-vip", flags: sourceVIP, about: aboutSourceVIP, system: "windows", windows: true,
			help: "reserve kube-proxy's source VIP on an overlay, and publish it"},
		{name: "service", below: serviceCommands(service.Control), about: aboutService, system: "windows",
			help: "install, uninstall, start, stop or show the service"},
		{name: "node", below: nodeCommands(), about: aboutNode, system: "windows",
			help: "make this machine a Windows node, without a DaemonSet, and undo that"},
		{name: "handback", flags: handback, about: aboutHandback, system: "linux", help: "convert the routes to flannel's form, before flannel runs here again",
			exits: map[int]string{exitHeld: besideDaemon}},
		{name: "cleanup", flags: cleanupCommand, about: aboutCleanup, help: "remove everything that flanneld and flannel left on this node",
			exits: map[int]string{exitHeld: besideDaemon}},
		{name: "version", flags: showVersion, help: "print the version"},
	}
}

// Meanings of exit codes that several commands have.
const (
	notRunning   = "the daemon does not run"
	noAnswer     = "the daemon runs but does not answer"
	held         = "another flanneld runs with the same subnet file"
	besideDaemon = "a flanneld or flannel runs, or may run, whose network this would change"
)

// commonExits are the exit codes of all commands.
var commonExits = map[int]string{exitOK: "success", exitError: "error", exitUsage: "invalid command line or environment"}
