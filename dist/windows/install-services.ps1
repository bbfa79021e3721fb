<#
.SYNOPSIS
Makes services of flanneld, kubelet and kube-proxy, so that the node comes back after a restart. Run start.ps1 first.

.DESCRIPTION
flanneld and kubelet start with the system. kube-proxy is started by the task flannel-node, which runs start.ps1: its
source VIP may be another one by then. A kubelet or kube-proxy that is a service already stays whose it is.
#>
[CmdletBinding()]
param([string]$BaseDir = 'C:\k')

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
Assert-Administrator
$settingsFile = Join-Path $BaseDir 'flannel-node.json'
Assert-File $settingsFile 'start.ps1 writes it: run that first.'
$s = Read-Json $settingsFile
$flanneld = Join-Path $BaseDir 'flanneld.exe'

& (Join-Path $PSScriptRoot 'stop.ps1') -BaseDir $BaseDir
Assert-Flanneld $flanneld @('service', 'install', '--env', "NODE_NAME=$($s.NodeName)", '--', '--kube-subnet-mgr', "--kubeconfig-file=$($s.KubeConfig)",
    "--iface=$($s.ManagementIP)", "--iface=$($s.InterfaceName)", "--net-config-path=$($s.NetConf)", '--ip-masq', '--healthz-ip=127.0.0.1',
    "--healthz-port=$($s.HealthPort)", "--log-file=$($s.LogDir)\flanneld.log")

$s.Services = $true
Write-Text $settingsFile ($s | ConvertTo-Json)

$script = Join-Path $PSScriptRoot 'start.ps1'
$action = New-ScheduledTaskAction -Execute 'powershell.exe' `
    -Argument (Join-Arguments @('-NoProfile', '-NonInteractive', '-ExecutionPolicy', 'Bypass', '-File', $script, '-BaseDir', $BaseDir))
# One run ends after a time, with a reason; another follows, as long as it takes.
$again = New-ScheduledTaskSettingsSet -RestartCount 999 -RestartInterval (New-TimeSpan -Minutes 1) -ExecutionTimeLimit (New-TimeSpan -Hours 1) `
    -MultipleInstances IgnoreNew
$null = Register-ScheduledTask -TaskName 'flannel-node' -Force -Action $action -Settings $again -Trigger (New-ScheduledTaskTrigger -AtStartup) `
    -Principal (New-ScheduledTaskPrincipal -UserId 'SYSTEM' -RunLevel Highest)
& $script -BaseDir $BaseDir
