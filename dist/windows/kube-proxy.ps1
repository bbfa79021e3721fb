<#
.SYNOPSIS
Runs kube-proxy in the foreground, for a HostProcess container, with the flags for this node's network, such as the
source VIP, and restarts it when they change. It ends when kube-proxy ends, or when flanneld is not ready in time; the
container is then restarted.
#>
[CmdletBinding()]
param(
    [Parameter(Mandatory)] [string]$KubeConfig,
    [string]$NodeName = $env:NODE_NAME,
    [string]$FeatureGates = '',
    [string]$Flanneld = (Join-Path $PSScriptRoot 'flanneld.exe'),
    [string]$KubeProxy = (Join-Path $PSScriptRoot 'kube-proxy.exe'),
    [int]$HealthPort = 8471,
    [int]$TimeoutMinutes = 15
)

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'
Import-Module (Join-Path $PSScriptRoot 'flannel.psm1') -Force
# Without bindfltapi.dll (Server 2019 before July 2022), volumes are below the container's own root.
if ($env:CONTAINER_SANDBOX_MOUNT_POINT -and -not (Test-Path -LiteralPath $KubeConfig)) {
    $KubeConfig = Join-Path $env:CONTAINER_SANDBOX_MOUNT_POINT ($KubeConfig -replace '^[A-Za-z]:', '')
}
if (-not $NodeName) { throw 'NODE_NAME is not set: it must be the name of this node.' }

Assert-Flanneld $Flanneld @('--healthz-ip=127.0.0.1', "--healthz-port=$HealthPort", 'wait', "--timeout=${TimeoutMinutes}m")
$version = Read-Program $KubeProxy @('--version')
do {
    $arguments = Join-Arguments (Get-KubeProxyArguments $Flanneld $version $NodeName $KubeConfig $FeatureGates)
    Write-Step "kube-proxy.exe $arguments"
    $process = Start-Process -FilePath $KubeProxy -ArgumentList $arguments -NoNewWindow -PassThru
    $null = $process.Handle # otherwise its exit code is lost
    $stale = $false
    while (-not $stale -and -not $process.WaitForExit(10000)) {
        try {
            $stale = (Join-Arguments (Get-KubeProxyArguments $Flanneld $version $NodeName $KubeConfig $FeatureGates)) -cne $arguments
        } catch {
            Write-Warning "$_" # flanneld may be starting
        }
    }
    if ($stale) {
        Write-Step 'the flags changed, restarting kube-proxy'
        Stop-Process -InputObject $process -Force
        $process.WaitForExit()
    }
} while ($stale)
exit $process.ExitCode
