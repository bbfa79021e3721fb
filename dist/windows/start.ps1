<#
.SYNOPSIS
Makes this machine a Windows node of a Kubernetes cluster: flanneld, kubelet and kube-proxy.

.DESCRIPTION
The parameters are those of the scripts of Microsoft and SIG Windows. It can be run again: it skips what is done
already, and says what stops it. It downloads nothing: Documentation/windows-quickstart.md says which files BaseDir must
have, and how to check them. It calls flanneld.exe node start, which does all of this.

NetworkMode and ClusterCIDR are used only if NetConf does not exist yet; otherwise that file describes the network.

Without -ManagementIP it uses the parameters of the last run.

.EXAMPLE
.\start.ps1 -ManagementIP 192.168.1.10 -NetworkMode overlay -InterfaceName "Ethernet 2"
#>
[CmdletBinding()]
param(
    [string]$ManagementIP,
    [ValidateSet('l2bridge', 'overlay')] [string]$NetworkMode = 'l2bridge',
    [string]$ClusterCIDR = '10.244.0.0/16',
    [string]$ServiceCIDR = '10.96.0.0/12',
    [string]$KubeDnsServiceIP = '10.96.0.10',
    [string]$InterfaceName = 'Ethernet',
    [string]$LogDir = 'C:\k',
    [string]$KubeletFeatureGates = '',
    [string]$KubeProxyFeatureGates = '',
    [string]$BaseDir = 'C:\k',
    [string]$KubeConfig = "$BaseDir\config",
    # Default: the host name, in lower case.
    [string]$NodeName = '',
    [string]$NetConf = 'C:\etc\kube-flannel\net-conf.json',
    # Default: where containerd looks (flanneld cni-dirs).
    [string]$CniBinDir = '',
    [string]$CniConfDir = '',
    [string]$KubeletConfig = 'C:\var\lib\kubelet\config.yaml',
    # If kubelet's configuration is missing, one is written that accepts clients with a certificate of this CA: the API
    # server.
    [string]$ClientCA = 'C:\etc\kubernetes\pki\ca.crt',
    [string]$ContainerRuntimeEndpoint = 'npipe:////./pipe/containerd-containerd',
    [int]$HealthPort = 8471,
    [int]$TimeoutMinutes = 15,
    # Overwrite a CNI configuration that somebody edited.
    [switch]$Force
)

# flanneld.exe has the same defaults. It has to know which parameters were given: the others are those of the last run.
$words = @("--base-dir=$($BaseDir.TrimEnd('\'))", "--timeout=${TimeoutMinutes}m")
foreach ($name in 'ManagementIP', 'NetworkMode', 'ClusterCIDR', 'ServiceCIDR', 'KubeDnsServiceIP', 'InterfaceName', 'LogDir', 'KubeletFeatureGates',
    'KubeProxyFeatureGates', 'KubeConfig', 'NodeName', 'NetConf', 'CniBinDir', 'CniConfDir', 'KubeletConfig', 'ClientCA', 'ContainerRuntimeEndpoint',
    'HealthPort', 'Force') {
    if ($PSBoundParameters.ContainsKey($name)) {
        # ClusterCIDR is --cluster-cidr. A backslash at the end would escape the quote that PowerShell 5.1 adds if there are spaces.
        $words += '--' + ($name -creplace '([a-z])([A-Z])', '$1-$2').ToLower() + '=' + "$($PSBoundParameters[$name])".TrimEnd('\')
    }
}
$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& (Join-Path $BaseDir 'flanneld.exe') node start $words
exit $LASTEXITCODE
