<#
.SYNOPSIS
Makes flanneld, kubelet and kube-proxy services, so that they run after a reboot. Run start.ps1 first.

.DESCRIPTION
flanneld and kubelet start with the system. kube-proxy is started by the task flannel-node, which runs boot.ps1 and so
start.ps1, because its source VIP may have changed. A kubelet or kube-proxy that is already a service is not changed.
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
# Without a time limit, because boot.ps1 retries until it succeeds.
$patient = New-ScheduledTaskSettingsSet -ExecutionTimeLimit (New-TimeSpan -Seconds 0) -MultipleInstances IgnoreNew
$null = Register-ScheduledTask -TaskName 'flannel-node' -Force -Action $action -Settings $patient -Trigger (New-ScheduledTaskTrigger -AtStartup) `
    -Principal (New-ScheduledTaskPrincipal -UserId 'SYSTEM' -LogonType ServiceAccount -RunLevel Highest)
& (Join-Path $PSScriptRoot 'start.ps1') -BaseDir $BaseDir
