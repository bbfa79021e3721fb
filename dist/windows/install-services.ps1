<#
.SYNOPSIS
Makes services of flanneld, kubelet and kube-proxy, so that the node comes back after a restart. Run start.ps1 first.

.DESCRIPTION
flanneld and kubelet start with the system. kube-proxy is started by the task flannel-node, which runs start.ps1 by boot.ps1: its
source VIP may be another one by then. A kubelet or kube-proxy that is a service already stays whose it is.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator
$BaseDir = Get-FullPath $BaseDir
$settingsFile = Join-Path $BaseDir 'flannel-node.json'
Assert-File $settingsFile 'start.ps1 writes it: run that first.'

& (Join-Path $PSScriptRoot 'stop.ps1') -BaseDir $BaseDir
$settings = Read-Settings $settingsFile
$settings['Services'] = $true
$null = Write-Text $settingsFile ($settings | ConvertTo-Json)

$action = New-ScheduledTaskAction -Execute 'powershell.exe' -Argument (Join-Arguments @('-NoProfile', '-NonInteractive', '-ExecutionPolicy', 'Bypass',
        '-File', (Join-Path $PSScriptRoot 'boot.ps1'), '-BaseDir', $BaseDir))
# It takes as long as it takes: no limit of time.
$patient = New-ScheduledTaskSettingsSet -ExecutionTimeLimit (New-TimeSpan -Seconds 0) -MultipleInstances IgnoreNew
$null = Register-ScheduledTask -TaskName 'flannel-node' -Force -Action $action -Settings $patient -Trigger (New-ScheduledTaskTrigger -AtStartup) `
    -Principal (New-ScheduledTaskPrincipal -UserId 'SYSTEM' -LogonType ServiceAccount -RunLevel Highest)
& (Join-Path $PSScriptRoot 'start.ps1') -BaseDir $BaseDir
