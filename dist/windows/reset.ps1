<#
.SYNOPSIS
Removes what start.ps1 and install-services.ps1 created, the network included: the host has no address for half a
minute.

.DESCRIPTION
Pods of this node lose their network: drain it first. Programs, logs, kubeconfig, services that others installed, and
networks of others stay; flanneld cleanup --dry-run shows what is removed. The network configuration (start.ps1
-NetConf) stays, too: delete it before you run start.ps1 with another -NetworkMode or -ClusterCIDR.
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'High')]
param(
    [string]$BaseDir = 'C:\k',
    # Default: the directory of the last start.ps1, which is by default that of containerd.
    [string]$CniConfDir = ''
)

$flanneld = Join-Path $BaseDir 'flanneld.exe'
$words = "--base-dir=$($BaseDir.TrimEnd('\'))", "--cni-conf-dir=$($CniConfDir.TrimEnd('\'))"
$global:LASTEXITCODE = 1 # stays so if flanneld.exe cannot be run
& $flanneld node reset --dry-run $words
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'stop flanneld, kubelet and kube-proxy, remove the above')) { exit 0 }
Get-ScheduledTask -TaskName 'flannel-node' -ErrorAction SilentlyContinue | Unregister-ScheduledTask -Confirm:$false
& $flanneld node reset $words
exit $LASTEXITCODE
