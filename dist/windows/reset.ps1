<#
.SYNOPSIS
Removes what start.ps1 and install-services.ps1 created, the network included: the host has no address for half a
minute.

.DESCRIPTION
Pods of this node lose their network: drain it first. Programs, logs, kubeconfig, a kubelet that others installed, and
networks of others stay; flanneld cleanup --dry-run shows what is removed. The network configuration (start.ps1
-NetConf) stays, too: delete it before you run start.ps1 with another -NetworkMode or -ClusterCIDR.
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'High')]
param(
    [string]$BaseDir = 'C:\k',
    # Default: the directory of the last start.ps1, which is by default that of containerd.
    [string]$CniConfDir = ''
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator
$BaseDir = Get-FullPath $BaseDir
$last = Read-Settings (Join-Path $BaseDir 'flannel-node.json')
if (-not $CniConfDir -and $last.ContainsKey('CniConfDir')) { $CniConfDir = $last['CniConfDir'] }
$flanneld = Join-Path $BaseDir 'flanneld.exe'
Assert-File $flanneld 'It is needed to remove the network.'
if (-not $CniConfDir) { $CniConfDir = (Get-CniDirectories $flanneld).confDir }

$null = Invoke-Flanneld $flanneld @('cleanup', '--dry-run')
if (-not $PSCmdlet.ShouldProcess($env:COMPUTERNAME, 'stop flanneld, kubelet and kube-proxy, remove the above')) { return }

& (Join-Path $PSScriptRoot 'stop.ps1') -BaseDir $BaseDir
Get-ScheduledTask -TaskName 'flannel-node' -ErrorAction SilentlyContinue | Unregister-ScheduledTask -Confirm:$false
Assert-Flanneld $flanneld @('service', 'uninstall')
foreach ($name in 'kubelet', 'kube-proxy') {
    $own = Get-OwnService $name
    if ($own) { Invoke-ServiceMethod $own 'Delete' @{}; Write-Step "removed the service $name" }
}
Assert-Flanneld $flanneld @('cleanup')
foreach ($file in "$CniConfDir\10-flannel.conf", "$BaseDir\flannel-node.json", "$BaseDir\kubelet.json",
    'C:\run\flannel\subnet.env', 'C:\run\flannel\cni-conf.json',
    # Of earlier scripts: a source VIP that is no longer reserved.
    "$BaseDir\SourceVip.json", "$BaseDir\SourceVipRequest.json") {
    if (Test-Path -LiteralPath $file) { Remove-Item -LiteralPath $file; Write-Step "removed $file" }
}
