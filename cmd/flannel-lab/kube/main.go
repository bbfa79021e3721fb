// Command kube contains the programs of Kubernetes that the lab and tests run. The
// name by which it is started selects one of them: bin/kubectl is a link to bin/kube.
// So does its first argument: "kube kubectl get nodes". Otherwise it is a control
// plane.
//
// The programs share most of their code, which is thus linked once. Each start also
// initializes the packages of all of them: kubectl takes about 50 ms of CPU more than
// on its own.
//
// It is a module of its own, which keeps the dependencies of Kubernetes out of
// the daemon and the lab.
package main

import (
	"context"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	_ "k8s.io/component-base/logs/json/register" // --logging-format=json, as in the original programs

	"flannel/cmd/flannel-lab/kube/render"
)

// programs are the programs besides the control plane. Each reads its arguments from
// os.Args, as its original does, and returns its exit status.
var programs = map[string]func() int{
	"kubectl":                 kubectl,
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kube-controller-manager": func() int { return cli.Run(manager.NewControllerManagerCommand()) },
	"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"render":                  render.Main,
}

func main() {
	run := programs[filepath.Base(os.Args[0])]
	if run == nil && len(os.Args) > 1 {
		if run = programs[os.Args[1]]; run != nil {
			os.Args = os.Args[1:]
		}
	}
	if run == nil {
		run = controlPlane
	}
	os.Exit(run())
}

func kubectl() int {
	// klog's level must be known before the flags are parsed, as in kubectl itself.
	_, _ = logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args))
	if err := cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // prints it and exits
	}
	return 0
}
