<#
.SYNOPSIS
Runs kube-proxy in the foreground, for a HostProcess container, with the flags for this node's network, such as the
source VIP, and restarts it when they change. It ends when kube-proxy ends, or when flanneld is not ready in time; the
container is then restarted. It calls flanneld.exe node kube-proxy, which a container can do without this script.
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory)] [string]$KubeConfig,
    [string]$NodeName = $env:NODE_NAME,
    [string]$FeatureGates = '',
    [string]$Flanneld = (Join-Path $PSScriptRoot 'flanneld.exe'),
    [string]$KubeProxy = (Join-Path $PSScriptRoot 'kube-proxy.exe'),
    # 0: flanneld is asked at its socket beside the subnet file.
    [int]$HealthPort = 0,
    [int]$TimeoutMinutes = 15
)

$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& $Flanneld node kube-proxy "--kube-config=$KubeConfig" "--node-name=$NodeName" "--feature-gates=$FeatureGates" "--kube-proxy=$KubeProxy" "--health-port=$HealthPort" "--timeout=${TimeoutMinutes}m"
exit $LASTEXITCODE
