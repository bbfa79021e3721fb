package render

import (
	"fmt"
	"io"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/release"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// Name and namespace of the release.
const (
	releaseName      = "flannel"
	releaseNamespace = "kube-flannel"
)

// install does what `helm install --create-namespace` does with the chart in dir, and
// prints the notes of the chart. It does not wait until pods are ready.
func install(w io.Writer, kubeconfig, dir, valuesFile string) error {
	config, err := helm(kubeconfig)
	if err != nil {
		return err
	}
	i := action.NewInstall(config)
	i.ReleaseName, i.Namespace, i.CreateNamespace = releaseName, releaseNamespace, true
	c, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	values, err := readValues(valuesFile)
	if err != nil {
		return err
	}
	r, err := i.Run(c, values)
	return notes(w, r, err)
}

// upgrade does what `helm upgrade` does, and with reuse `helm upgrade --reuse-values`. It
// prints the notes of the chart.
func upgrade(w io.Writer, kubeconfig, dir, valuesFile string, reuse bool) error {
	config, err := helm(kubeconfig)
	if err != nil {
		return err
	}
	u := action.NewUpgrade(config)
	// With ReuseValues, values that a new version of the chart introduces are missing
	// from the old ones: the chart must work without them.
	u.Namespace, u.ReuseValues, u.Timeout = releaseNamespace, reuse, time.Minute
	c, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	values, err := readValues(valuesFile)
	if err != nil {
		return err
	}
	r, err := u.Run(releaseName, c, values)
	return notes(w, r, err)
}

// rollback does what `helm rollback` does: it returns to the previous revision.
func rollback(kubeconfig string) error {
	config, err := helm(kubeconfig)
	if err != nil {
		return err
	}
	return action.NewRollback(config).Run(releaseName)
}

// uninstall does what `helm uninstall` does.
func uninstall(kubeconfig string) error {
	config, err := helm(kubeconfig)
	if err != nil {
		return err
	}
	_, err = action.NewUninstall(config).Run(releaseName)
	return err
}

// helm returns the configuration of Helm's commands. Helm keeps the revisions of a
// release as Secrets in its namespace, so that each call of this program finds those
// of earlier ones. Its debug messages are dropped.
func helm(kubeconfig string) (*action.Configuration, error) {
	flags := genericclioptions.NewConfigFlags(false) // false: each use reads the kubeconfig anew
	namespace := releaseNamespace
	flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
	config := &action.Configuration{}
	err := config.Init(flags, namespace, "secret", func(string, ...any) {})
	return config, err
}

// readValues reads a file like that of --values; without a file there are none, and
// the chart's defaults apply.
func readValues(file string) (chartutil.Values, error) {
	if file == "" {
		return chartutil.Values{}, nil
	}
	return chartutil.ReadValuesFile(file)
}

// notes prints the rendered NOTES.txt of a release, or returns err if it is not nil.
func notes(w io.Writer, r *release.Release, err error) error {
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, r.Info.Notes)
	return err
}
