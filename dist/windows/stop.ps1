<#
.SYNOPSIS
Stops what start.ps1 started, in reverse order. The network stays as it is, and pods keep their connections; start.ps1
starts again.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator
$BaseDir = Get-FullPath $BaseDir

# Otherwise it would restart what is stopped here.
Get-ScheduledTask -TaskName 'flannel-node' -ErrorAction SilentlyContinue | Stop-ScheduledTask
Stop-Component $BaseDir 'kube-proxy'
if (Get-Service -Name flanneld -ErrorAction SilentlyContinue) {
    Assert-Flanneld (Join-Path $BaseDir 'flanneld.exe') @('service', 'stop')
}
Stop-Component $BaseDir 'flanneld'
Stop-Component $BaseDir 'kubelet'
